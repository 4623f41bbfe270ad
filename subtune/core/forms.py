"""What a device makes of a model before it is partitioned: types of products, orders of dims, what copies are worth.

The defaults are a CPU's: cores have 50 to 200 GFLOP/s and 5 to 20 GB/s each.
"""

from __future__ import annotations

from dataclasses import dataclass

from subtune.core.numerics import HALVES


@dataclass(frozen=True, slots=True)
class Forms:
    """Of a kind of device.

    Attributes:
        keeps_planes: convolutions that are all depthwise may keep their channels first, and pointwise ones to few
            channels of the model's input.
        planes_of_group: then so may grouped ones of float32, of so many channels that a group reads, at most.
        reads_planes: it reads rows of planes as fast as channels: interpolations, and a pointwise convolution that is
            the only one, have their channels first.
        halves: those whose products it has; the products of a model in another half are made in float32.
        multiplies_groups: in a half, grouped convolutions are products like others; else they are made in float32.
        whole_step_fmas: recurrent layers stay whole, as it computes them in kernels of its own, up to so many
            multiply-adds of a step; 0: they never do.
        ops_per_byte, half_ops_per_byte: operations that it does in the time of one byte from memory, of float32 and of
            halves: a copy matters the more, the faster the products are.
        pools_stems: a network's first convolution and the max pooling behind it can be one kernel.
        sums_products: so can two pointwise convolutions of halves that are added up.
        normed_columns: so can a product of halves and the norm of its rows, of so many columns at most; 0: it cannot.
        carries_norms: a product of halves can take the moments of its rows, and another make up with them for the norm
            between.
        half_row, float_row: rows of halves and of float32 are read best in whole multiples of so many elements; 1: as
            they are.
        byte_row: rows of bytes are multiplied in whole multiples of so many elements: convolutions of fewer channels
            are computed in halves; 1: as they are.
        byte_word: of those, the ones of an image have pixels of so many bytes instead, where that takes few zeros;
            0: they are computed in halves, too.
        byte_rows: type of the first operand with which products of bytes are the cheapest, uint8 or int8; "": they are
            as cheap with either.
        pads_lengths: attentions of symbolic lengths are padded to whole vectors of keys and whole tiles of rows, there
            being no last tile that checks.
        keeps_caches: its kernels read and write the caller's own arrays, and can leave rows of them as they are.
        multiplies_float8: products of float8e4m3fn are its own; else they are made in float32.
        copies_operands: attention can store copies of the keys and values that it reads.
        copies_products: a product of halves can store copies of its result.
        pools_images: pools of volumes with channels first are pools of images, there being no windows of three axes.
        folds_heads: heads of one row that share keys and values are rows of one product.
        sorts_computed: what sorts computes what it goes by from what it reads.
        packed_rows: products of up to so many rows read constant weights of 4 and 8 bits as they are; 0: none does.
        packed_halves: of a product of halves, these weights become halves; else such a product is made in float32.
        packed_floats: products of float32 read them so as well; else those of halves alone.
        packed_block: elements that share a scale at the least, where that is not a whole row; blocks are powers of two
            of which nothing is left over, and rows are multiples of `half_row`. 0: any.
    """

    keeps_planes: bool = False
    planes_of_group: int = 1
    reads_planes: bool = False
    halves: frozenset[str] = HALVES
    multiplies_groups: bool = False
    whole_step_fmas: int = 0
    ops_per_byte: float = 10.0
    half_ops_per_byte: float = 10.0
    pools_stems: bool = False
    sums_products: bool = False
    normed_columns: int = 0
    copies_operands: bool = False
    copies_products: bool = False
    pools_images: bool = False
    folds_heads: bool = False
    sorts_computed: bool = False
    carries_norms: bool = False
    half_row: int = 1
    float_row: int = 1
    byte_row: int = 1
    byte_word: int = 0
    byte_rows: str = ""
    packed_rows: int = 0
    packed_halves: bool = False
    packed_floats: bool = True
    packed_block: int = 0
    multiplies_float8: bool = False
    pads_lengths: bool = False
    keeps_caches: bool = False


ANY = Forms()
