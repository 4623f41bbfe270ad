"""Relay's operators of anchors, regions and proposals against plain loops."""

from __future__ import annotations

import math

import numpy as np

from subtune.frontends.relay.ops.roi import CONVERTERS as REGIONS
from tests.frontends.relay.expect import RNG, Expect, check, floats, refused
from tests.frontends.relay.test_nms import iou

FEATURES = floats(1, 3, 2, 4)


def prior(height: int, width: int, sizes: list, ratios: list, steps: tuple, offsets: tuple, clip: bool) -> np.ndarray:
    down = steps[0] if steps[0] > 0 else 1 / height
    across = steps[1] if steps[1] > 0 else 1 / width
    rows = []
    for i in range(height):
        for j in range(width):
            y, x = (i + offsets[0]) * down, (j + offsets[1]) * across
            shapes = [(s * height / width, s) for s in sizes]
            shapes += [(sizes[0] * height / width * math.sqrt(r), sizes[0] / math.sqrt(r)) for r in ratios[1:]]
            rows += [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for w, h in shapes]
    boxes = np.float32([rows])
    return np.clip(boxes, 0, 1) if clip else boxes


CLASSES, ANCHORS = 4, 15
PROB = RNG.random((2, CLASSES, ANCHORS)).astype("float32")
PROB[:, 1:] *= (RNG.random((2, 1, ANCHORS)) > 0.4).astype("float32")
LOC = floats(2, ANCHORS * 4)
ANCHOR = np.sort(RNG.random((1, ANCHORS, 2, 2)), 2).reshape(1, ANCHORS, 4).astype("float32")


def located(clip: bool, threshold: float, variances: tuple, keep: bool) -> list[np.ndarray]:
    out, counts = np.full((2, ANCHORS, 6), -1, "float32"), np.zeros(2, "int32")
    for b in range(2):
        for j in range(ANCHORS):
            scores = PROB[b, 0 if keep else 1 :, j]
            k, score = int(scores.argmax()) + (0 if keep else 1), scores.max()
            k = 0 if score < threshold else k
            if not keep and k == 0:
                continue
            left, top, right, bottom = ANCHOR[0, j]
            dx, dy, dw, dh = LOC[b, j * 4 : j * 4 + 4] * np.float32(variances)
            x, y = dx * (right - left) + (left + right) / 2, dy * (bottom - top) + (top + bottom) / 2
            w, h = np.exp(dw) * (right - left) / 2, np.exp(dh) * (bottom - top) / 2
            box = np.float32([x - w, y - h, x + w, y + h])
            out[b, counts[b]] = [k - (not keep), score, *(np.clip(box, 0, 1) if clip else box)]
            counts[b] += 1
    return [out, counts]


def loc(**attrs: object) -> Expect:
    given = {"clip": True, "threshold": 0.01, "variances": (0.1, 0.1, 0.2, 0.2), "keep_background": False, **attrs}
    like = located(*given.values())  # type: ignore[arg-type]
    return Expect("vision.multibox_transform_loc", (PROB, LOC, ANCHOR), like, attrs, rtol=1e-4, atol=1e-5)


def reorganised(x: np.ndarray, s: int) -> np.ndarray:
    """Darknet's loop over the flat input."""
    n, c, h, w = x.shape
    flat, inner = x.reshape(-1), c // (s * s)
    out = [
        flat[i * s + k // inner % s + w * s * (j * s + k // inner // s + h * s * (k % inner + inner * b))]
        for b, k, j, i in np.ndindex(x.shape)
    ]
    return np.asarray(out, x.dtype).reshape(n, c * s * s, h // s, w // s)


MAP = floats(2, 3, 8, 9)
ROIS = np.float32(
    [[0, 1.3, 0.7, 10.2, 9.1], [1, -3, -2, 5.5, 4.5], [1, 4, 4, 4.2, 4.1], [0, 12, 2, 30, 28], [1, 0, 0, 17, 15]]
)


def sample(image: np.ndarray, y: float, x: float) -> np.ndarray:
    _, h, w = image.shape
    if y < -1 or x < -1 or y > h or x > w:
        return np.zeros(len(image))
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
    top = image[:, y0, x0] * (1 - x + x0) + image[:, y0, x1] * (x - x0)
    bottom = image[:, y1, x0] * (1 - x + x0) + image[:, y1, x1] * (x - x0)
    return top * (1 - y + y0) + bottom * (y - y0)


def aligned(size: tuple[int, int], scale: float, ratio: int, mode: str, rois: np.ndarray = ROIS) -> np.ndarray:
    out = np.zeros((len(rois), 3, *size), "float32")
    for r, (image, left, top, right, bottom) in enumerate(rois):
        h, w = max((bottom - top) * scale, 1) / size[0], max((right - left) * scale, 1) / size[1]
        ny, nx = (ratio, ratio) if ratio > 0 else (math.ceil(h), math.ceil(w))
        for i, j in np.ndindex(*size):
            taps = [
                sample(MAP[int(image)], top * scale + (i + (a + 0.5) / ny) * h, left * scale + (j + (b + 0.5) / nx) * w)
                for a, b in np.ndindex(ny, nx)
            ]
            out[r, :, i, j] = np.mean(taps, 0) if mode == "avg" else np.max(taps, 0)
    return out


def pooled(size: tuple[int, int], scale: float) -> np.ndarray:
    out = np.zeros((len(ROIS), 3, *size), "float32")
    for r, (image, *corners) in enumerate(ROIS):
        left, top, right, bottom = (int(np.round(v * scale)) for v in corners)
        h, w = max(bottom - top + 1, 1) / size[0], max(right - left + 1, 1) / size[1]
        for i, j in np.ndindex(*size):
            y0, y1 = (min(max(v + top, 0), 8) for v in (math.floor(i * h + 1e-5), math.ceil((i + 1) * h - 1e-5)))
            x0, x1 = (min(max(v + left, 0), 9) for v in (math.floor(j * w + 1e-5), math.ceil((j + 1) * w - 1e-5)))
            if y0 < y1 and x0 < x1:
                out[r, :, i, j] = MAP[int(image), :, y0:y1, x0:x1].max((1, 2))
    return out


def region(op: str, made: np.ndarray, attrs: dict) -> list[Expect]:
    """The same in both layouts."""
    last = MAP.transpose(0, 2, 3, 1).copy()
    return [
        Expect(op, (MAP, ROIS), made, attrs, rtol=1e-4, atol=1e-4),
        Expect(op, (last, ROIS), made.transpose(0, 2, 3, 1), {**attrs, "layout": "NHWC"}, rtol=1e-4, atol=1e-4),
    ]


RPN_PROB = RNG.permutation(2 * 8 * 4 * 5).reshape(2, 8, 4, 5).astype("float32") / 320
RPN_DELTA = floats(2, 16, 4, 5) * np.float32(0.3)
PIXEL = np.array([0, 0, 1, 1])
INFO = np.float32([[60, 70, 1], [64, 64, 0.5]])


def proposed(scales: tuple, ratios: tuple, stride: int, threshold: float, pre: int, post: int, least: int, plain: bool):
    out = []
    for b in range(2):
        height, width, zoom = INFO[b]
        boxes = []
        for y, x, k in np.ndindex(4, 5, 4):
            ratio, scale = ratios[k // len(scales)], scales[k % len(scales)]
            w = math.floor(math.sqrt(math.floor(stride * stride / ratio)) + 0.5)
            h = math.floor(w * ratio + 0.5) * scale
            w *= scale
            cx, cy = stride * x + (stride - 1) / 2, stride * y + (stride - 1) / 2
            box = np.array([cx - (w - 1) / 2, cy - (h - 1) / 2, cx + (w - 1) / 2, cy + (h - 1) / 2])
            d = RPN_DELTA[b, 4 * k : 4 * k + 4, y, x]
            if plain:
                box = box + d
            else:
                cx, cy, w, h = d[0] * w + cx, d[1] * h + cy, np.exp(d[2]) * w, np.exp(d[3]) * h
                box = np.array([cx - (w - 1) / 2, cy - (h - 1) / 2, cx + (w - 1) / 2, cy + (h - 1) / 2])
            box = np.clip(box, 0, [width - 1, height - 1] * 2)
            score = RPN_PROB[b, 4 + k, y, x]
            score = -1 if y >= int(height / stride) or x >= int(width / stride) else score
            if min(box[2] - box[0], box[3] - box[1]) + 1 < zoom * least:
                box, score = box + np.array([-1, -1, 1, 1]) * zoom * least / 2, -1
            boxes.append((score, box))
        order = sorted(range(len(boxes)), key=lambda i, boxes=boxes: -boxes[i][0])[: pre if pre > 0 else None]
        kept: list[np.ndarray] = []
        for i in order:
            wide = boxes[i][1] + PIXEL
            if all(iou(k + PIXEL, wide) <= threshold for k in kept):
                kept.append(boxes[i][1])
        out += [[b, *kept[i % len(kept)]] for i in range(post)]
    return np.float32(out)


def rpn(**attrs: object) -> Expect:
    given = {
        "scales": (2.0, 4.0),
        "ratios": (0.5, 2.0),
        "feature_stride": 16,
        "threshold": 0.5,
        "rpn_pre_nms_top_n": 50,
        "rpn_post_nms_top_n": 12,
        "rpn_min_size": 16,
        "iou_loss": False,
        **attrs,
    }
    like = proposed(*given.values())  # type: ignore[arg-type]
    return Expect("vision.proposal", (RPN_PROB, RPN_DELTA, INFO), like, given, rtol=1e-4, atol=1e-3)


CASES = [
    Expect("vision.multibox_prior", (FEATURES,), prior(2, 4, [1], [1], (-1, -1), (0.5, 0.5), False)),
    Expect(
        "vision.multibox_prior",
        (FEATURES,),
        prior(2, 4, [0.2, 0.4], [1, 2, 0.5], (0.3, 0.2), (0.4, 0.6), True),
        {"sizes": [0.2, 0.4], "ratios": [1, 2, 0.5], "steps": [0.3, 0.2], "offsets": [0.4, 0.6], "clip": True},
    ),
    loc(),
    loc(clip=False, threshold=0.3, variances=(1.0, 0.5, 0.7, 0.3)),
    loc(keep_background=True),
    Expect("vision.yolo_reorg", (floats(2, 8, 4, 6) * 0 + 1,), np.ones((2, 32, 2, 3), "float32"), {"stride": 2}),
    *[
        Expect("vision.yolo_reorg", (x,), reorganised(x, s), {"stride": s})
        for x, s in ((floats(2, 8, 4, 6), 2), (MAP, 1))
    ],
    *[
        case
        for scale, ratio, mode in ((0.5, 2, "avg"), (0.5, -1, "avg"), (1.0, 3, "max"), (0.25, 0, "max"))
        for case in region(
            "vision.roi_align",
            aligned((2, 3), scale, ratio, mode),
            {"pooled_size": [2, 3], "spatial_scale": scale, "sample_ratio": ratio, "mode": mode},
        )
    ],
    *[
        case
        for scale in (0.5, 1.0)
        for case in region("vision.roi_pool", pooled((3, 2), scale), {"pooled_size": [3, 2], "spatial_scale": scale})
    ],
    Expect(  # PyTorch's importer moves the images' numbers with the corners: the nearest image, no other memory
        "vision.roi_align",
        (MAP, ROIS * np.float32([9, 1, 1, 1, 1])),
        aligned((2, 3), 0.5, 2, "avg", ROIS),
        {"pooled_size": [2, 3], "spatial_scale": 0.5, "sample_ratio": 2},
    ),
    rpn(),
    rpn(iou_loss=True, threshold=0.7),
    rpn(rpn_min_size=60, rpn_pre_nms_top_n=-1, rpn_post_nms_top_n=40, threshold=0.3),
]
TESTED = {case.op for case in CASES}


def test_detection() -> None:
    check(CASES)


def test_refused() -> None:
    assert REGIONS.keys() <= TESTED
    size = {"pooled_size": [2, 2]}
    refused("vision.roi_align", (MAP, ROIS), {**size, "mode": "sum"}, "mode 'sum'")
    refused("vision.roi_align", (MAP, ROIS), {**size, "layout": "NCHW4c"}, "layout")
    refused("vision.roi_pool", (MAP, ROIS[:, 1:]), size, "pools float32")
    refused("vision.roi_pool", (MAP, ROIS), {}, "lacks its attribute pooled_size")
    refused("vision.yolo_reorg", (MAP,), {"stride": 2}, "by stride 2")
    refused("vision.multibox_transform_loc", (PROB, LOC[:, 1:], ANCHOR), {}, "has predictions")
    refused("vision.multibox_transform_loc", (PROB[:, :1], LOC, ANCHOR), {}, "no class")
    refused("vision.proposal", (RPN_PROB, RPN_DELTA, INFO), {}, "12 anchors")
