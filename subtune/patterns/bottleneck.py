"""What policies and templates know of a mobile network's block: 1x1, depthwise, and 1x1 convolution."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taps:
    """A window along one axis: output `i` reads inputs `i * stride + tap * dilation - pad`."""

    taps: int
    stride: int
    dilation: int
    pad: int

    @property
    def span(self) -> int:
        """Inputs from the first to the last that one output reads."""
        return (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`images` x `height` x `width` pixels of `channels` between the 1x1 convolutions; `rows` and `columns` select.

    The first 1x1 convolution reads `inputs` channels; 0 where there is none, and the depthwise one reads a parameter.
    The last gives `outputs` channels of `out_height` x `out_width` pixels.
    """

    images: int
    height: int
    width: int
    inputs: int
    channels: int
    outputs: int
    out_height: int
    out_width: int
    rows: Taps
    columns: Taps

    def ring_rows(self, step: int) -> int:
        """Rows kept of what the depthwise convolution reads, while it makes `step` rows at a time."""
        return (step - 1) * self.rows.stride + self.rows.span

    @property
    def ring_width(self) -> int:
        """Pixels of such a row, with the zeros left and right of the image."""
        last = (self.out_width - 1) * self.columns.stride + self.columns.span
        return max(self.columns.pad + self.width, last)

    def cached_bytes(self, step: int) -> int:
        """What a thread keeps from one step to the next, and between the depthwise and the last convolution."""
        kept = self.ring_rows(step) * self.ring_width + step * self.out_width
        return 4 * self.channels * kept
