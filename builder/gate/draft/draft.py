"""Drafts the cases of an extension: imports it, finds its ops and functions, and tries each one."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from builder.gate import discover
from builder.gate.checks.dispatch import unused_cpu_kernels
from builder.gate.context import sentence
from builder.gate.coverage import without_overload
from builder.gate.draft.guesses import Guess, norm_weights, source
from builder.gate.draft.refine import (
    facts_about,
    failing_checks,
    of_compiled_module,
    with_different_numbers,
    with_different_sizes,
    with_empty_tensor,
)
from builder.gate.draft.result import (
    CALLED,
    CUDA_ONLY,
    NO_FAKE_KERNEL,
    NOT_CALLED,
    Argument,
    Drafts,
    OpDraft,
    shortened,
)
from builder.gate.draft.search import Found, Search
from builder.gate.draft.shapes import fake_kernel
from builder.gate.draft.signatures import STR, Parameter, Signature, likely_written, signature_of, takes_tensor
from builder.gate.draft.trial import TrialProcess
from builder.gate.imports.cases_file import CasesFile, load_cases
from builder.gate.outcome import Spec
from builder.gate.processes.fork_server import PRELOAD, import_all, warm_up_tracing
from builder.gate.system import rlimits
from builder.gate.system.nvidia import may_have_gpu

# Finds the public Python functions of a package that take tensors and call the package's ops.

#: How many calls deep a function is searched for an op.
_DEPTH = 3


def public_functions(imports: Sequence[str], ops: Sequence[str]) -> list[str]:
    """Return the dotted paths: each function once, by its shortest public path.

    A function counts if it is a function of a module in `imports` with a tensor parameter, or if it is in another
    loaded module of these packages and its code names one of the ops.
    """
    tops = {name.partition(".")[0] for name in imports}
    names = _short_names(ops)
    found: dict[int, str] = {}
    for module in sorted(_modules(tops), key=lambda one: (one.__name__.count("."), one.__name__)):
        for name, value in _public(module):
            home = getattr(value, "__module__", None) or ""
            scripted = type(value).__name__ == "ScriptFunction"  # its module is torch.jit, and it has no code
            if (home.partition(".")[0] not in tops and not scripted) or id(value) in found:
                continue
            path = f"{module.__name__}.{name}"
            signature = _signature(path)
            if signature is None or not takes_tensor(signature):
                continue
            declared = module.__name__ in imports and "Tensor" in signature.text
            if declared or scripted or _reaches(value, names, _DEPTH, set()):
                found[id(value)] = path
    return sorted(found.values())


def _signature(path: str) -> Any:  # noqa: ANN401
    try:
        return signature_of(path)
    except Exception:  # noqa: BLE001 (a lazy module may run any code)
        return None


def _modules(tops: set[str]) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        private = any(part.startswith("_") for part in name.split("."))
        if (
            name.partition(".")[0] in tops
            and name.count(".") <= 1
            and not private
            and getattr(module, "__file__", "").endswith(".py")
        ):
            yield module


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    listed = getattr(module, "__all__", None)
    for name in listed or list(vars(module)):
        value = getattr(module, name, None)
        if not name.startswith("_") and (isinstance(value, FunctionType) or type(value).__name__ == "ScriptFunction"):
            yield name, value


def _short_names(ops: Sequence[str]) -> set[str]:
    """Return the names of ops without namespace, module and overload."""
    return {op.partition("::")[2].partition(".")[0] if "::" in op else op.rpartition(".")[2] for op in ops}


def _reaches(value: Any, names: set[str], depth: int, seen: set[int]) -> bool:  # noqa: ANN401
    """Whether the code of a function, or of a function or class that it names, names an op."""
    if id(value) in seen or depth < 0:
        return False
    seen.add(id(value))
    if isinstance(value, type):
        return any(_reaches(getattr(one, "__func__", one), names, depth, seen) for one in vars(value).values())
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    used = set(_names(code))
    # An op is an attribute, `torch.ops.namespace.op` or `_C.op`, and no global of the function's module.
    scope = getattr(value, "__globals__", {})
    if ("ops" in used and used & names) or any(name in names and name not in scope for name in used):
        return True
    others = (scope[name] for name in used if isinstance(scope.get(name), (FunctionType, type)))
    return any(_reaches(other, names, depth - 1, seen) for other in others)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


_FILE = re.compile(r"file|path|folder|^dir", re.IGNORECASE)


def draft(root: Path, spec: Spec) -> Drafts:
    """Return the drafts of every op and function without a case."""
    import_all(PRELOAD)  # torch's own ops that an import registers late are not the extension's
    warm_up_tracing()
    where = discover.where()
    recorder = discover.RegistrationRecorder(spec.imports)
    for name in dict.fromkeys([*spec.needs_first, *spec.imports]):
        try:
            with recorder:
                importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 (SystemExit is an import error too)
            return Drafts(where, f"import {name} raises {discover.one_line(error)}")
    loaded = load_cases(root) if spec.has_cases else CasesFile()
    if loaded.problem:
        return Drafts(where, loaded.problem)
    ops = discover.ops(recorder, loaded.public)
    functions = [one for one in public_functions(spec.imports, ops) if one not in ops]
    covered = {*(case.op for case in loaded.cases), *loaded.not_claimed}
    wanted = [op for op in [*ops, *functions] if not covered & {op, without_overload(op)}]
    drafts = [replace(one, required=one.op in ops) for one in _in_processes(wanted, spec.jobs)]
    called = {one.op for one in drafts if one.state == CALLED}
    public = [name for name in spec.imports if _is_public(name, called)]
    return Drafts(where, "", sorted(covered), public, drafts, sorted(unused_cpu_kernels(loaded.cases, ops)))


def _is_public(module: str, called: set[str]) -> bool:
    """Whether every public callable of the module has a case, so that PUBLIC may list the module."""
    callables = set(discover.public_callables(module))
    return bool(callables) and callables <= called


def _in_processes(ops: Sequence[str], jobs: int) -> list[OpDraft]:
    """Draft the ops in several processes; return the drafts in the order of the ops."""
    rlimits.become_subreaper()
    with tempfile.TemporaryDirectory() as folder:
        parent, pids = os.getpid(), []
        for job in range(max(1, min(jobs, len(ops)))):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    rlimits.exit_with_parent(parent)
                    os.chdir(folder)
                    for number in range(job, len(ops), jobs):
                        text = json.dumps(asdict(draft_op(ops[number])))
                        Path(folder, f"{number}.json").write_text(text, encoding="utf-8")
                    status = 0
                finally:
                    os._exit(status)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        return [_read(Path(folder, f"{number}.json"), op) for number, op in enumerate(ops)]


def _read(path: Path, op: str) -> OpDraft:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return OpDraft(op, NOT_CALLED, "the process that tries this op ended early")
    return OpDraft.from_json(data)


def draft_op(op: str) -> OpDraft:
    """Return the draft of one op."""
    try:
        signature = signature_of(op)
    except Exception as error:  # noqa: BLE001 (a lazy module may run any code)
        return OpDraft(op, NOT_CALLED, f"the signature of the op cannot be read: {sentence(error)}")
    if signature is None:
        reason = "the parameters are unknown: the op has no schema, no signature and no docstring by pybind11"
        return OpDraft(op, NOT_CALLED, reason)
    if any(one.kind == STR and _FILE.search(f"{op} {one.name}") for one in signature.parameters):
        reason = "an argument is the name of a file, and a draft neither reads nor writes files"
        return OpDraft(op, NOT_CALLED, reason, signature.text)
    tried = _try(op, signature, "cpu")
    if tried.state == CUDA_ONLY and may_have_gpu():
        on_cuda = _try(op, signature, "cuda")
        tried = on_cuda if on_cuda.state == CALLED else tried
    return tried


def _try(op: str, signature: Signature, device: str) -> OpDraft:
    process = TrialProcess(op, signature.parameters, device)
    try:
        found = Search(signature.parameters, process).run()
        facts: dict[str, Any] = {}
        candidate = found.candidate
        if found.called:
            from_end = bool(norm_weights(signature.parameters))
            candidate, fact = with_different_sizes(process, candidate, found.fact, from_end=from_end)
            candidate, fact = with_different_numbers(process, candidate, fact, called=True)
            facts = {**fact, **facts_about(process, op, candidate)}
            if "::" in op and facts["untraced"].startswith(NO_FAKE_KERNEL):
                facts["fake"] = fake_kernel(process, op, signature.parameters, candidate, facts)
        elif found.only_cuda:
            candidate, _ = with_different_numbers(process, candidate, {}, called=False)
            facts = {"changed": likely_written(op, signature), "untraced": of_compiled_module(process, op)}
        empty, empty_error = with_empty_tensor(process, candidate, called=found.called)
        if found.called and not facts["untraced"]:
            facts.update(failing_checks(process, op, candidate, empty, facts))
    finally:
        process.close()
    return OpDraft(
        op,
        CALLED if found.called else CUDA_ONLY if found.only_cuda else NOT_CALLED,
        _reason(found),
        signature.text,
        _arguments(signature, candidate, facts.get("grad", [])),
        found.calls,
        facts.get("result", []),
        facts.get("contiguous_only", False),
        [] if "::" in op else facts.get("changed", []),
        facts.get("untraced", ""),
        device,
        remark=facts.get("remark", ""),
        written=_written(signature, facts),
        empty=_arguments(signature, empty, []) if empty and (found.called or found.only_cuda) else [],
        empty_error=empty_error,
        unclaimed=facts.get("unclaimed", {}),
        fake=facts.get("fake", ""),
        empty_unclaimed=facts.get("empty_unclaimed", {}),
    )


def _written(signature: Signature, facts: dict[str, Any]) -> list[str]:
    """Return the names of the arguments that an op without a result writes to."""
    if facts.get("result") or ("result" not in facts and not signature.returns_nothing):
        return []
    changed = facts.get("changed", ())
    return [one.name for at, one in enumerate(signature.parameters) if one.written or at in changed]


def _reason(found: Found) -> str:
    if found.called:
        return ""
    if found.only_cuda:
        return f"the op has no CPU kernel: {shortened(found.error, 150)}"
    error = shortened(found.error, 300)
    return f"none of {found.calls} calls succeeded; one of the last errors: {error}"


def _arguments(signature: Signature, candidate: Sequence[Guess], grad: Sequence[int]) -> list[Argument]:
    """Return the arguments without the last ones that have their default value."""
    pairs = list(zip(signature.parameters, candidate))
    last = max((at for at, pair in enumerate(pairs) if not pair[0].keyword and not _is_default(*pair)), default=-1)
    arguments: list[Argument] = []
    for at, (one, guess) in enumerate(pairs):
        if guess[0] == "omitted" or (_is_default(one, guess) and (one.keyword or at > last)):
            continue
        keyword = one.keyword or len(arguments) < at
        arguments.append(Argument(one.name, source(guess, grad=at in grad), keyword))
    return arguments


def _is_default(parameter: Parameter, guess: Guess) -> bool:
    return parameter.has_default and guess in (("omitted",), ("value", parameter.default))


def main(root: Path, spec: Spec, answer: Path | None) -> int:
    """Write the drafts as JSON to `answer`, or print them; return the exit status."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # torch counts GPUs without a context, which a fork cannot use
    text = json.dumps(draft(root, spec).to_json(), indent=1)
    if answer:
        answer.write_text(text + "\n", encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")
    return 0
