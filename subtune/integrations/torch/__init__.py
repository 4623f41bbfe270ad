"""PyTorch in front of subtune: modules compiled in one line, and a backend of `torch.compile`.

    compiled = subtune.compile(module, example_inputs)
    faster = torch.compile(module, backend="subtune", options={"budget": "30s"})

Imported only where a module of PyTorch's is given: `import subtune` does without.
"""

from subtune.integrations.torch.compiled import CompiledModule, compile_module

__all__ = ["CompiledModule", "compile_module"]
