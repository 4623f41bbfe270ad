"""The geometry of a sliding window: pads, strides and output extents of convolutions and pools."""

from __future__ import annotations

from dataclasses import dataclass, replace

from subtune.frontends.onnx.ops.node import Node


@dataclass(frozen=True, slots=True)
class Window:
    """One window over the spatial axes.

    Attributes:
        out: output extents. In ceil mode the last window may reach beyond the padded input.
        after: the pads at the end as the node gives them; `reach` is what the windows read there.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    out: tuple[int, ...]
    reach: tuple[int, ...]

    @property
    def padding(self) -> tuple[int, ...]:
        """Pads as TVM's operators take them, windows beyond the padded input included."""
        return (*self.before, *(max(a, r) for a, r in zip(self.after, self.reach, strict=True)))

    def trimmed(self, spatial: tuple[int, ...]) -> Window:
        """The same positions without the taps that none of them puts inside the input: a pool's pads hold no values.

        Exporters write whole-image pools with kernels as they please (1280 over 7x7).
        """
        kernel, after, reach = [], [], []
        for i, extent in enumerate(spatial):
            dilation = self.dilations[i]
            # Dilated taps may end before the input does: one more keeps the last window's end where it was.
            taps = min(self.kernel[i], -(-(extent + self.before[i]) // dilation) + (dilation > 1))
            cut = self.kernel[i] - taps
            kernel.append(taps)
            after.append(0 if cut else self.after[i])
            reach.append(self.reach[i] - cut * dilation)
        return replace(self, kernel=tuple(kernel), after=tuple(after), reach=tuple(reach))

    def along(self, *axes: int | None) -> Window:
        """The window along some axes; None is one of a single element, over which nothing slides."""

        def picked(values: tuple[int, ...], single: int) -> tuple[int, ...]:
            return tuple(single if axis is None else values[axis] for axis in axes)

        ones = {name: picked(getattr(self, name), 1) for name in ("kernel", "strides", "dilations", "out")}
        return replace(self, **ones, **{name: picked(getattr(self, name), 0) for name in ("before", "after", "reach")})

    @property
    def has_pads(self) -> bool:
        return any(self.padding)


def window_of(node: Node, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """The window that the node's attributes describe over an input of extents `spatial`."""
    n = len(spatial)
    strides = tuple(node.attr("strides") or [1] * n)
    dilations = tuple(node.attr("dilations") or [1] * n)
    if not len(strides) == len(dilations) == len(kernel) == n:
        node.refuse(f"has strides {strides} and dilations {dilations} for {n} spatial axes")
    effective = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attr("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for extent, k, s in zip(spatial, effective, strides, strict=True):
            total = (-(-extent // s) - 1) * s + k - extent
            # Strides beyond the kernel: the specification crops, runtimes differ. At -1 a convolution never
            # crops (1x1 with stride 2 is common), a pool not at the start.
            pool_start = auto == "SAME_LOWER" and "Pool" in node.op
            if total < (0 if pool_start else -1):
                node.refuse(f"has auto_pad {auto} with strides {strides} beyond its kernel {kernel}")
            total = max(0, total)
            small, large = total // 2, total - total // 2
            before.append(small if auto == "SAME_UPPER" else large)
            after.append(large if auto == "SAME_UPPER" else small)
    elif auto == "VALID":
        before, after = [0] * n, [0] * n
    elif auto == "NOTSET":
        pads = list(node.attr("pads") or [0] * (2 * n))
        before, after = pads[:n], pads[n:]
    else:
        node.refuse(f"has auto_pad {auto}")
    if min(before + after, default=0) < 0:
        node.refuse("has negative pads")
    out, reach = [], []
    for i, extent in enumerate(spatial):
        room = extent + before[i] + after[i] - effective[i]
        count = room // strides[i] + 1
        if node.attr("ceil_mode", 0) and auto == "VALID" and room % strides[i]:
            node.refuse("has ceil_mode with auto_pad VALID, which runtimes read differently")
        if node.attr("ceil_mode", 0) and auto == "NOTSET":
            count = -(-room // strides[i]) + 1
            if (count - 1) * strides[i] >= extent + before[i]:  # a window may not start in the end padding
                count -= 1
        if count < 1:
            node.refuse(f"has a window of {effective[i]} over an extent of {extent + before[i] + after[i]}")
        out.append(count)
        reach.append((count - 1) * strides[i] + effective[i] - extent - before[i])
    return Window(tuple(kernel), strides, dilations, tuple(before), tuple(after), tuple(out), tuple(reach))
