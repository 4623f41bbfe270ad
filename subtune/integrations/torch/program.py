"""An exported program in the form that ONNX can say: nothing is written in place, all results are computed tensors."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import ExportGraphSignature
from torch.utils import _pytree as pytree


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program with what it changes as results, which its signature names; the same where it changes nothing."""
    nodes = (node for module in program.graph_module.modules() for node in getattr(module, "graph", fx.Graph()).nodes)
    if not any(isinstance(node.target, OpOverload) and node.target._schema.is_mutable for node in nodes):
        return program
    return program.run_decompositions({})


def tensors_only(program: ExportedProgram) -> ExportedProgram:
    """The program without results that are None, numbers, arguments, weights, or there already."""
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    given = graph.graph_copy(program.graph, nodes)
    for old, new in nodes.items():
        new.name = old.name  # a copy may be called otherwise, and the signature knows names
    leaves = given if isinstance(given, list | tuple) else (given,)
    computed = [one for one in leaves if isinstance(one, fx.Node) and one.op != "placeholder"]
    computed = list(dict.fromkeys(computed))
    output = graph.output(tuple(computed))
    output.meta = dict(program.graph.output_node().meta)
    names = {one.name for one in computed}
    of = program.graph_signature
    specs = {one.arg.name: one for one in of.output_specs if getattr(one.arg, "name", None) in names}
    kept = [specs[one.name] for one in computed]
    module = fx.GraphModule(program.graph_module, graph)
    entry = program.module_call_graph[0]
    signature = entry.signature
    assert signature is not None
    out_spec = pytree.tree_structure((0,) * len(computed))
    outputs = [one.arg for one in kept]
    called = ModuleCallSignature(signature.inputs, outputs, signature.in_spec, out_spec, signature.forward_arg_names)
    return ExportedProgram(
        module,
        graph,
        ExportGraphSignature(of.input_specs, kept),
        program.state_dict,
        program.range_constraints,
        [ModuleCallEntry(entry.fqn, called)],
        program.example_inputs,
        program.constants,
        verifiers=program.verifiers,
    )
