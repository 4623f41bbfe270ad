"""Dynamic shapes: what is declared of them, how long kernels for any shape take, and which kernel a shape gets.

    measured times -> cost: the time of every kernel at every shape -> cover: the fewest kernels -> dispatcher: a tree

A shape is a row of extents. They are those of the anchor's loops: where a product has batch*seq rows, these are one
extent.
"""
