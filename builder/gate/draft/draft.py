"""Drafts the cases of an extension: imports it, finds its ops and the functions that call them, and tries each one."""

from __future__ import annotations

import dis
import json
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from builder.gate import discover
from builder.gate.amounts import counted
from builder.gate.checks.compile_export import warm_up
from builder.gate.context import resolve, sentence
from builder.gate.draft import refine
from builder.gate.draft.guesses import Candidate, Parameter, Signature, alternatives, signature_of, source
from builder.gate.draft.result import CALLED, CUDA_ONLY, NOT_CALLED, Drafts, OpDraft, shortened
from builder.gate.draft.search import CALLS, FEW_CALLS, only_cuda, search
from builder.gate.draft.trial import OMITTED, Recorded, TrialProcess, split
from builder.gate.outcome import Spec, without_overload
from builder.gate.processes.extension_process import PRELOAD, import_all, load
from builder.gate.system import rlimits
from builder.gate.system.nvidia import may_have_gpu

_FILE = re.compile(r"file|path|folder|^dir", re.IGNORECASE)
#: Names of functions that compute gradients, and of their argument with the gradient of the output.
_BACKWARD = re.compile(r"_?(backward|bwd)(?=\.|$)")
_OF_OUTPUT = re.compile(r"grad|(grad|d)_?(outputs?|out|o|y)|out(put)?_?grad", re.IGNORECASE)
#: How many calls deep a function is searched for an op.
_DEPTH = 3
#: Why an op has no case.
_UNKNOWN = "the parameters are unknown: the op has no schema, no signature and no docstring by pybind11"
_OF_FILE = "an argument is the name of a file, and a draft neither reads nor writes files"
_NO_TENSOR = "the function takes and returns no tensor; write a case if its result matters"
_ENDED = "the process that tries this op ended early"


def draft(root: Path, spec: Spec) -> Drafts:
    """Return the drafts of every op and function without a case."""
    import_all(PRELOAD)  # torch's own ops that an import registers late are not the extension's
    warm_up()
    where = discover.where()
    loaded, facts = load(root, spec, os.open(os.devnull, os.O_WRONLY))  # the events of the imports go nowhere
    for problem in filter(None, [*facts["errors"], facts["cases_problem"]]):
        return Drafts(where, problem)
    ops = facts["ops"]
    functions = [one for one in callables(spec.imports, ops) if one not in ops]
    covered = {*(case.op for case in loaded.cases), *facts["not_claimed"]}
    named = {name for op in covered for name in (op, op.partition("(")[0])}
    wanted = [op for op in [*ops, *functions] if not named & {op, without_overload(op)}]
    drafts = [replace(one, required=one.op in ops) for one in _in_rounds(wanted, spec.jobs)]
    return Drafts(where, "", sorted(covered), drafts)


def callables(imports: Sequence[str], ops: Sequence[str]) -> list[str]:
    """Return the dotted paths of functions and of classes of torch.nn.Module: each once, by its shortest public path.

    A function counts if it is a function of a module in `imports` with a tensor parameter, or if it is in another
    loaded module of these packages and its code names one of the ops. A class counts if its code names one.
    """
    tops = {name.partition(".")[0] for name in imports}
    names = {op.partition("::")[2].partition(".")[0] if "::" in op else op.rpartition(".")[2] for op in ops}
    found: dict[int, str] = {}
    for module in sorted(_public_modules(tops), key=lambda one: (one.__name__.count("."), one.__name__)):
        for name in getattr(module, "__all__", None) or list(vars(module)):
            value = getattr(module, name, None)
            scripted = type(value).__name__ == "ScriptFunction"  # its module is torch.jit, and it has no code
            is_module = isinstance(value, type) and issubclass(value, torch.nn.Module)
            own = scripted or (getattr(value, "__module__", None) or "").partition(".")[0] in tops
            if name.startswith("_") or not own or not (is_module or scripted or isinstance(value, FunctionType)):
                continue
            path = f"{module.__name__}.{name}"
            text = "" if is_module else _declared(path)
            plain = scripted or (module.__name__ in imports and "Tensor" in text)
            if (text and plain) or ((text or is_module) and _reaches(value, names, _DEPTH, set())):
                found.setdefault(id(value), path)
    return sorted(found.values())


def _declared(path: str) -> str:
    try:
        signature = signature_of(path)
    except Exception:  # noqa: BLE001 (a lazy module may run any code)
        return ""
    return signature.text if signature and signature.takes_tensor else ""


def _public_modules(tops: set[str]) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        top, *below = name.split(".")
        public = top in tops and len(below) <= 1 and not any(part.startswith("_") for part in (top, *below))
        if public and (getattr(module, "__file__", None) or "").endswith(".py"):
            yield module


def _reaches(value: Any, names: set[str], depth: int, seen: set[int]) -> bool:  # noqa: ANN401
    """Whether the code of a function, or of a function or class that it names, names an op."""
    value = getattr(value, "__self__", value)  # of `apply`, the class of the autograd function
    if id(value) in seen or depth < 0:
        return False
    seen.add(id(value))
    if isinstance(value, type):
        members = [*vars(value).values(), getattr(value, "forward", None)]  # `forward` may be that of a base class
        return any(_reaches(getattr(one, "__func__", one), names, depth, seen) for one in members)
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    scope, used = getattr(value, "__globals__", {}), set(_names_in(code))
    found = [scope[name] for name, _ in used if name in scope]
    # An op is an attribute, `torch.ops.namespace.op` or `_C.op`, also in a function of the same name; or a function of
    # a compiled module that this module imports, under any name.
    named = {one.__name__ for one in found if isinstance(one, BuiltinFunctionType)}
    if names & named.union(name for name, is_attribute in used if is_attribute or name not in scope):
        return True
    others = (one for one in found if isinstance(one, (FunctionType, MethodType, type)))
    return any(_reaches(other, names, depth - 1, seen) for other in others)


def _names_in(code: CodeType) -> Iterator[tuple[str, bool]]:
    """The names in a code, each with whether it is that of an attribute."""
    for one in dis.get_instructions(code):
        if isinstance(one.argval, CodeType):
            yield from _names_in(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM"):
            yield one.argval, one.opname in ("LOAD_ATTR", "LOAD_METHOD")


def _in_rounds(ops: Sequence[str], jobs: int) -> list[OpDraft]:
    """Draft the ops in several processes; return the drafts in the order of the ops.

    The first round tries few calls of each op. A good call shows how it calls other ops, so the next rounds begin with
    these arguments.
    """
    rlimits.become_subreaper()
    found: dict[str, OpDraft] = {}
    inside: dict[str, list[Recorded]] = {}
    fork = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(max(1, jobs), fork, _begin, (os.getpid(), folder)) as pool,
    ):
        for most in (FEW_CALLS, CALLS, FEW_CALLS):
            failed = {op for op, one in found.items() if one.state == NOT_CALLED and (most == CALLS or op in inside)}
            todo = [op for op in ops if op not in found or op in failed]
            tries = [pool.submit(draft_op, op, inside.get(op, ()), ops, most) for op in todo]
            for number, (op, tried) in enumerate(zip(todo, tries)):
                again = ", again" if len(todo) < len(ops) else ""
                print(f"gate: {number} of {counted(len(todo), 'op')}{again}", file=sys.stderr, flush=True)  # noqa: T201
                try:
                    found[op], calls = tried.result()
                except BrokenProcessPool:
                    return [found.get(one, OpDraft(one, NOT_CALLED, _ENDED)) for one in ops]
                for one in calls:
                    inside.setdefault(one.op, []).append(one)
    return [found[op] for op in ops]


def _begin(parent: int, folder: str) -> None:
    rlimits.exit_with_parent(parent)
    os.chdir(folder)


#: The draft of an op, and the first calls of other ops that its call makes.
Drafted = tuple[OpDraft, Sequence[Recorded]]


def draft_op(op: str, starts: Sequence[Recorded] = (), others: Sequence[str] = (), most: int = CALLS) -> Drafted:
    """Return the draft of one op, function or class of torch.nn.Module, and the calls of `others` inside of its call.

    `starts` are known calls of it, and `most` is the number of calls after which the search ends.
    """
    try:
        name = _constructed(op) if isinstance(resolve(op), type) else op
        signature = signature_of(name)
        if signature is None:
            return OpDraft(op, NOT_CALLED, _UNKNOWN), ()
        if any(one.kind == "str" and _FILE.search(f"{op} {one.name}") for one in signature.parameters):
            return OpDraft(name, NOT_CALLED, _OF_FILE, signature.text), ()
        drafted = _on_device("cpu", name, signature, starts, others, most)
        if drafted[0].state == CUDA_ONLY and may_have_gpu():
            on_cuda = _on_device("cuda", name, signature, starts, others, most)
            drafted = on_cuda if on_cuda[0].state == CALLED else drafted
    except Exception as error:  # noqa: BLE001 (a constructor or a lazy module may run any code)
        return OpDraft(op, NOT_CALLED, f"the signature of the op cannot be read: {sentence(error)}"), ()
    return drafted


def _constructed(name: str) -> str:
    """Return the text that constructs a module of a class, with plain values for parameters without a default.

    The first guess, such as the size of every tensor, suits fewer constructors than the second one.
    """
    signature = signature_of(name)
    texts = []
    for one in signature.parameters if signature else ():
        if not one.has_default:
            plain = [guess for guess in alternatives(one) if guess[0] == "value"] or [("value", None)]
            text = source(plain[:2][-1])
            texts.append(f"{one.name}={text}" if one.keyword else text)
    return f"{name}({', '.join(texts)})"


def _on_device(
    device: str, op: str, signature: Signature, starts: Sequence[Recorded], others: Sequence[str], most: int
) -> Drafted:
    parameters = signature.parameters
    process = TrialProcess(op, parameters, device)
    try:
        candidate, trial, calls = search(parameters, process, [_candidate(parameters, one) for one in starts], most)
        state = CALLED if not trial.error else CUDA_ONLY if only_cuda(trial.error) else NOT_CALLED
        draft = OpDraft(op, state, signature=signature.text, device=device)
        if state == NOT_CALLED:
            error = shortened(trial.error, 300)
            return replace(draft, reason=f"none of {calls} calls succeeded; one of the last errors: {error}"), ()
        if state == CUDA_ONLY:
            candidate = _with_gradient(op, parameters, refine.with_different_numbers(candidate))
            nothing = re.search(r"-> (\(\)|'?None'?:?)$", signature.text)
            return replace(
                draft,
                reason=f"the op has no CPU kernel: {shortened(trial.error, 150)}",
                untraced=refine.of_compiled_module(op),
                written=[one.name for one in parameters if one.written and nothing],
                **_texts(parameters, candidate),
            ), ()
        candidate, fact = refine.varied(process, candidate, trial.fact)
        changed = candidate if starts else _with_gradient(op, parameters, candidate)
        if changed != candidate and not (trial := process.call("plain", changed)).error:
            candidate, fact = changed, trial.fact
        if not signature.takes_tensor and all(shape is None for _, shape in fact.values):
            return replace(draft, state=NOT_CALLED, reason=_NO_TENSOR), ()
        facts = refine.facts_about(process, candidate)
        grad = facts.pop("grad")
        draft = replace(draft, mutates=[] if "::" in op else fact.changed, **facts)
        if draft.lacks_fake_kernel and "::" in op:
            draft = replace(draft, fake=refine.fake_kernel(process, parameters, candidate, fact))
        names = [one.name for at, one in enumerate(parameters) if one.written or at in fact.changed]
        shown = [name if shape is None else f"{name} {shape}" for name, shape in fact.values]
        draft = replace(draft, results=shown, written=[] if shown else names, **_texts(parameters, candidate, grad))
        inside: Sequence[Recorded] = process.call("calls_inside", candidate, ops=others).fact or () if others else ()
        compiled = [one.op for one in inside if refine.of_compiled_module(one.op)]
        if compiled and not draft.untraced:
            draft = replace(draft, untraced=f"torch cannot trace {compiled[0]}, a function of a compiled module")
        return draft, inside
    finally:
        process.close()


def _with_gradient(op: str, parameters: Sequence[Parameter], candidate: Candidate) -> Candidate:
    """Return the arguments of a backward function, with the shape of the first other tensor for the gradient.

    A kernel of the CPU may broadcast a smaller one, and a kernel of CUDA reads past its end.
    """
    gradients = [one.name for one in parameters if _OF_OUTPUT.fullmatch(one.name)]
    others = [guess for one, guess in zip(parameters, candidate) if one.name not in gradients]
    shape = next((guess[2] for guess in others if guess[0] == "tensor"), None)
    if not _BACKWARD.search(op) or shape is None:
        return candidate
    return tuple(
        (*guess[:2], shape, guess[3]) if guess[0] == "tensor" and one.name in gradients else guess
        for one, guess in zip(parameters, candidate)
    )


def _candidate(parameters: Sequence[Parameter], call: Recorded) -> Candidate:
    """Return a guess for each parameter: those of a call, and the most likely one for the others."""
    known = {**{one.name: guess for one, guess in zip(parameters, call.given)}, **call.named}
    return tuple(known.get(one.name) or next(alternatives(one)) for one in parameters)


def _texts(parameters: Sequence[Parameter], candidate: Candidate, grad: Sequence[int] = ()) -> dict[str, Any]:
    """Return `arguments` and `kwargs` of a draft, without the last arguments that have their default value."""
    usual = [
        one.has_default and guess in (("omitted",), ("value", one.default)) for one, guess in zip(parameters, candidate)
    ]
    last = max((at for at, one in enumerate(parameters) if not one.keyword and not usual[at]), default=-1)
    texts: list[Any] = []
    for at, (one, guess) in enumerate(zip(parameters, candidate)):
        left = guess == ("omitted",) or (usual[at] and (one.keyword or at > last))
        texts.append(OMITTED if left else source(guess, grad=at in grad))
    return dict(zip(("arguments", "kwargs"), split(parameters, texts)))


def main(root: Path, spec: Spec, answer: Path | None) -> int:
    """Write the drafts as JSON to `answer`, or print them; return the exit status."""
    text = json.dumps(asdict(draft(root, spec)), indent=1) + "\n"
    if answer:
        answer.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0
