"""The program that the judged Python runs. It imports the standard library only, and runs under Python 3.7."""

from __future__ import annotations

PROBE = """
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import json, os, platform, site, sysconfig
version = "{0[0]}.{0[1]}.{0[2]}".format(sys.version_info)
print(json.dumps({
    "executable": sys.executable,
    "prefix": sys.prefix,
    "python": "{0[0]}.{0[1]}".format(sys.version_info) + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
    "own": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")],
    "path": [entry for entry in sys.path if os.path.isdir(entry)],
    "user_site": (site.getusersitepackages() if site.ENABLE_USER_SITE else ""),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "markers": {
        "python_version": "{0[0]}.{0[1]}".format(sys.version_info),
        "python_full_version": version,
        "implementation_name": sys.implementation.name,
        "implementation_version": version,
        "platform_python_implementation": platform.python_implementation(),
        "os_name": os.name,
        "sys_platform": sys.platform,
        "platform_system": platform.system(),
        "platform_machine": platform.machine(),
        "platform_release": "",
        "platform_version": "",
    },
}))
"""
