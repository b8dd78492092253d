"""The checks of the op gate: name, meaning, and how each one runs. Standard library only, no torch.

Every other list of checks derives from `CHECKS`: the tasks, and `builder.proof.Check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GateCheck:
    """One check of the gate."""

    #: The name in reports and for `--check`.
    name: str
    #: `module:function` in `builder.gate.checks`, called as `(context, case) -> list of outcomes`, or as `(context)` if
    #: `per_extension`; "" for a check that the scheduler itself decides.
    function: str = ""
    #: "cpu" runs on the CPU (on CUDA for an op without a CPU kernel); "cuda" needs a GPU; "none" executes no kernel and
    #: runs on any machine.
    device: str = "cpu"
    heap_checks: bool = False
    #: "with" runs edge cases too, "without" skips them, "only" runs nothing else.
    edges: str = "with"
    #: One task for the extension instead of one for each case.
    per_extension: bool = False
    #: Its time limit as a multiple of the limit in the spec.
    time_factor: float = 1.0
    #: Tasks of a check with a higher cost start earlier, so that the run does not end with the slowest.
    cost: int = 0
    #: Whether the judge decides: `send_FUNCTION` calls the op and writes the results, and the function of the same name
    #: in `builder.gate.processes.judge_process` compares them. `function` itself runs if the judge cannot.
    judged: bool = False
    #: Whether one process may run several of its cases. Such a process can only pass a case. A case that does not pass
    #: there runs again alone. Results that depend on earlier calls fail "repeat", whose cases are always alone.
    together: bool = False


#: What a passed check shows, in one sentence. The order is that of reports.
MEANINGS: Mapping[str, str] = {
    "ops": "Every dispatcher op, every pybind function and every public callable of the modules listed in `PUBLIC` in "
    "cases.py has a case.",
    "loaded": "The imports of the recipe load every shared library of the wheel for this CUDA.",
    "dispatch": "Every op has a kernel for each dispatch key that the recipe lists under `libraries`. If the recipe "
    "lists no key, every op has a kernel for each device of its own cases.",
    "import-order": "torch, the extension and the `companions` can be imported in different orders, and then an op "
    "runs.",
    "values": "Results agree with the reference or the invariant of the case, in every dtype that the case lists.",
    "gradients": "Each op with floating-point tensors has a gradient, which agrees with the reference and, if the case "
    "asks for gradcheck, with finite differences.",
    "layouts": "Non-contiguous inputs and output gradients give the same results as contiguous ones.",
    "edges": "Empty inputs and batches of one element give the expected results.",
    "repeat": "Repeated runs give the same bits, on the devices that the case lists in `deterministic`.",
    "memory": "The op does not access memory outside its tensors, and results do not depend on uninitialised memory.",
    "opcheck": "torch.library.opcheck passes: schema, autograd registration, fake tensors, AOT dispatch.",
    "fake": "The fake kernel returns the same shapes, dtypes, strides and devices as the real kernel.",
    "devices": "Under FakeTensorMode the op refuses tensors on two devices, except where the case allows them.",
    "export": "torch.export captures the op with fixed and with dynamic shapes, and the program gives the same "
    "results.",
    "compile": "torch.compile(fullgraph=True) gives the same results and gradients, with static and with dynamic "
    "shapes.",
    "gpu-values": "Results on CUDA agree with the reference or the invariant of the case, and with the CPU kernel.",
    "gpu-stream": "Kernels run on the current CUDA stream.",
    "gpu-graph": "A CUDA graph captures the op, and a replay with other inputs gives the right results.",
    "gpu-device": "The op works on a second GPU while the first GPU is the current device. Needs two GPUs.",
    "gpu-sanitizer": "compute-sanitizer's memcheck reports no errors.",
}

#: The checks by name, in the order of reports. The scheduler itself decides "ops", "loaded" and "import-order".
CHECKS: Mapping[str, GateCheck] = {
    check.name: check
    for check in (
        GateCheck("ops"),
        GateCheck("loaded"),
        GateCheck("dispatch", "dispatch:dispatch", "none", per_extension=True),
        GateCheck("import-order", time_factor=3.0),
        GateCheck("values", "values:values", edges="without", judged=True),
        GateCheck("gradients", "gradients:gradients", together=True),
        GateCheck("layouts", "layouts:layouts", edges="without", together=True),
        GateCheck("edges", "values:values", edges="only", judged=True),
        GateCheck("repeat", "memory:repeat", edges="without"),
        GateCheck("memory", "memory:memory", heap_checks=True, cost=1),
        GateCheck("opcheck", "compile_export:opcheck", time_factor=2.0, cost=2, together=True),
        GateCheck("fake", "fake_tensor:fake", cost=1, together=True),
        GateCheck("devices", "fake_tensor:devices", "none", edges="without", together=True),
        GateCheck("export", "compile_export:export", edges="without", time_factor=2.0, cost=3, together=True),
        GateCheck("compile", "compile_export:compiled", edges="without", time_factor=2.0, cost=4, together=True),
        GateCheck("gpu-values", "gpu:values", "cuda"),
        GateCheck("gpu-stream", "gpu:stream", "cuda", edges="without"),
        GateCheck("gpu-graph", "gpu:graph", "cuda", edges="without"),
        GateCheck("gpu-device", "gpu:second_device", "cuda", edges="without"),
        GateCheck("gpu-sanitizer", "gpu:sanitizer", "cuda", edges="without", time_factor=4.0),
    )
}

#: The checks that run as tasks, in the order in which their tasks start.
TASK_CHECKS = tuple(sorted((check for check in CHECKS.values() if check.function), key=lambda check: -check.cost))
