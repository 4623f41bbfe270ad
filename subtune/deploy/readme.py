"""The page that lies in an exported directory: what the model takes, and ten lines that run it."""

from __future__ import annotations

from subtune.core.manifest import Manifest
from subtune.core.tensor_spec import TensorSpec

_PAGE = """# {name}

{domain}
| | name | dtype | shape |
|---|---|---|---|
{rows}

`model` is the artifact, `lib` what it needs to run: TVM's runtime, and `libsubtune.so`, whose sources are in `src`.
The directory may lie anywhere. It was made for {device}.

## From a shell

`bin/run` reads the inputs as raw bytes, one tensor behind the other, and writes the outputs so:

```bash
bin/run model{symbols} < inputs > outputs
```

## From C and C++

```c
#include "subtune.h"

subtune_model* model = subtune_load("model", 0);
if (!model) puts(subtune_error());
const void* inputs[] = {{{inputs}}};
void* outputs[] = {{{outputs}}};
int64_t symbols[] = {{{values}}};
if (subtune_run(model, inputs, outputs, symbols) != 0) puts(subtune_error());
subtune_free(model);
```

Build with `cc program.c -Iinclude -Llib -lsubtune -Wl,-rpath,'$ORIGIN/lib'`. `CMakeLists.txt` builds the loader again.

## From Python

`subtune_model.py` needs numpy:

```python
from subtune_model import Model

outputs = Model("model", "lib").run({{{arrays}}})
```
"""


def readme(manifest: Manifest) -> str:
    greatest = manifest.domain.greatest
    domain = f"Symbols: `{manifest.domain}`, in this order.\n" if greatest else ""

    def row(side: str, spec: TensorSpec) -> str:
        return f"| {side} | {spec.name} | {spec.dtype} | {list(spec.shape)} |".replace("'", "")

    inputs, outputs = manifest.inputs, manifest.outputs
    return _PAGE.format(
        name=manifest.name,
        domain=domain,
        rows="\n".join([*(row("input", spec) for spec in inputs), *(row("output", spec) for spec in outputs)]),
        device=manifest.device,
        symbols="".join(f" {name}={value}" for name, value in greatest.items()),
        values=", ".join(map(str, greatest.values())) or "0",
        inputs=", ".join(f"input_{i}" for i in range(len(inputs))),
        outputs=", ".join(f"output_{i}" for i in range(len(outputs))),
        arrays=", ".join(f'"{spec.name}": array_{i}' for i, spec in enumerate(inputs)),
    )
