"""`subtune bench --suite coverage`: cases drawn from a grammar of operators, each beside its best peer.

`grammar` draws the cases; `families_*` say what an operator means, once, in the words of `dialect`; `onnx_dialect`
makes a model of it and `torch_dialect` a PyTorch function. `compiling` tunes in a process of its own, so that a crash
costs one case; `suite` runs it all and `report` writes it down.
"""
