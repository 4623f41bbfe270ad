"""Relay's operators of box suppression against plain loops."""

from __future__ import annotations

import numpy as np

from tests.frontends.relay.expect import RNG, Expect, check, refused
from tests.frontends.relay.run import Known


def detections(rows: int, n: int, classes: int = 3) -> np.ndarray:
    """(rows, n, 6): id, score, and two corners in any order; some ids and scores are negative."""
    ids = RNG.integers(-1, classes, (rows, n, 1))
    scores = RNG.permutation(rows * n).reshape(rows, n, 1) / (rows * n) - 0.1
    corners = RNG.random((rows, n, 4)) * 4
    return np.concatenate([ids, scores, corners], -1).astype("float32")


def valid_counts(data: np.ndarray, threshold: float, id_index: int = 0, score_index: int = 1) -> list[np.ndarray]:
    out, indices = np.full_like(data, -1), np.full(data.shape[:2], -1, "int32")
    counts = np.zeros(len(data), "int32")
    for i, row in enumerate(data):
        for j, box in enumerate(row):
            if box[score_index] > threshold and (id_index < 0 or box[id_index] >= 0):
                out[i, counts[i]], indices[i, counts[i]] = box, j
                counts[i] += 1
    return [counts, out, indices]


def iou(a: np.ndarray, b: np.ndarray) -> float:
    al, at, ar, ab = min(a[0], a[2]), min(a[1], a[3]), max(a[0], a[2]), max(a[1], a[3])
    bl, bt, br, bb = min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])
    common = max(0, min(ar, br) - max(al, bl)) * max(0, min(ab, bb) - max(at, bt))
    union = (ar - al) * (ab - at) + (br - bl) * (bb - bt) - common
    return 0.0 if union <= 0 else common / union


def suppressed(
    data: np.ndarray,
    counts: np.ndarray,
    indices: np.ndarray,
    limit: int,
    threshold: float,
    force: bool = False,
    top: int = -1,
    start: int = 2,
    score: int = 1,
    ids: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The boxes in place, the indices of those that stay, and their number."""
    out = np.full_like(data, -1)
    picked = np.full(data.shape[:2], -1, "int32")
    numbers = np.zeros((len(data), 1), "int32")
    for i, row in enumerate(data):
        order = sorted(range(counts[i]), key=lambda j, row=row: -row[j, score])
        if threshold <= 0:
            out[i, : counts[i]] = row[: counts[i]]
            stay, order = [True] * counts[i], list(range(counts[i]))
        else:
            order = order[:top] if top > 0 else order
            kept: list[np.ndarray] = []
            stay = []
            for j in order:
                box = row[j]
                if len(kept) == limit:
                    stay.append(False)
                elif box[score] <= 0:
                    stay.append(True)
                else:
                    near = [k for k in kept if force or ids < 0 or (k[ids] >= 0 and k[ids] == box[ids])]
                    stay.append(all(iou(k[start:], box[start:]) < threshold for k in near))
                    if stay[-1]:
                        kept.append(box)
            for place, (j, stays) in enumerate(zip(order, stay, strict=True)):
                out[i, place] = row[j] if stays else -1
        found = [indices[i, j] for j, stays in zip(order, stay, strict=True) if stays and indices[i, j] >= 0]
        picked[i, : len(found)], numbers[i] = found, len(found)
    return out, picked, numbers


def to_bottom(out: np.ndarray) -> np.ndarray:
    result = np.full_like(out, -1)
    for i, row in enumerate(out):
        valid = row[row[:, 0] >= 0]
        result[i, : len(valid)] = valid
    return result


DATA = detections(3, 40)
COUNTS, FIRST, INDICES = valid_counts(DATA, 0.05)
LIMIT, IOU = Known(np.int32(-1)), Known(np.float32(0.3))
NO_ID = DATA[..., 1:].copy()


def nms(limit: int = -1, threshold: float = 0.3, data: np.ndarray = FIRST, **attrs: object) -> Expect:
    names = {
        "force_suppress": "force",
        "top_k": "top",
        "coord_start": "start",
        "score_index": "score",
        "id_index": "ids",
    }
    given = {names[k]: v for k, v in attrs.items() if k in names}
    out, picked, numbers = suppressed(data, COUNTS, INDICES, limit, threshold, **given)  # type: ignore[arg-type]
    like: object = [picked, numbers]
    if not attrs.get("return_indices", True):
        like = to_bottom(out) if attrs.get("invalid_to_bottom") else out
    args = (data, COUNTS, INDICES, Known(np.int32(limit)), Known(np.float32(threshold)))
    return Expect("vision.non_max_suppression", args, like, attrs)


BOXES = (RNG.random((2, 9, 4)) * 3).astype("float32")
SCORES = (RNG.permutation(2 * 3 * 9).reshape(2, 3, 9) / 54).astype("float32")


def all_class(limit: int, threshold: float, least: float) -> list[list[tuple[int, int, float]]]:
    """Per batch entry the class, box and score of what stays."""
    found: list[list[tuple[int, int, float]]] = []
    for boxes, scores in zip(BOXES, SCORES, strict=True):
        found.append([])
        for c, row in enumerate(scores):
            kept: list[int] = []
            for j in sorted(np.flatnonzero(row > least), key=lambda j, row=row: -row[j]):
                if (limit <= 0 or len(kept) < limit) and all(iou(boxes[k], boxes[j]) < threshold for k in kept):
                    kept.append(j)
            found[-1] += [(c, j, row[j]) for j in kept]
    return found


def onnx_rows(found: list[list[tuple[int, int, float]]]) -> list[np.ndarray]:
    table = [(b, c, j) for b, rows in enumerate(found) for c, j, _ in rows]
    out = np.zeros((54, 3), "int64")
    out[: len(table)] = table
    return [out, np.int64([len(table)])]


def tensorflow_rows(found: list[list[tuple[int, int, float]]]) -> list[np.ndarray]:
    out, scores = np.zeros((2, 27, 2), "int64"), np.zeros((2, 27), "float32")
    for b, rows in enumerate(found):
        out[b, : len(rows)] = [(c, j) for c, j, _ in rows]
        scores[b, : len(rows)] = [s for _, _, s in rows]
    return [out, scores, np.int64([len(rows) for rows in found])]


def every_class(limit: int, threshold: float, least: float, form: str) -> Expect:
    found = all_class(limit, threshold, least)
    args = (BOXES, SCORES, Known(np.int64([limit])), Known(np.float32(threshold)), Known(np.float32([least])))
    like = onnx_rows(found) if form == "onnx" else tensorflow_rows(found)
    return Expect("vision.all_class_non_max_suppression", args, like, {"output_format": form})


CASES = [
    Expect("vision.get_valid_counts", (DATA, Known(np.float32(0.05))), [COUNTS, FIRST, INDICES]),
    Expect("vision.get_valid_counts", (DATA,), valid_counts(DATA, 0.5), {"score_threshold": 0.5}),
    Expect(
        "vision.get_valid_counts",
        (NO_ID, Known(np.float32(0.2))),
        valid_counts(NO_ID, 0.2, -1, 0),
        {"id_index": -1, "score_index": 0},
    ),
    nms(),
    nms(return_indices=True, max_output_size=-1),
    nms(4, return_indices=False),
    nms(4, return_indices=False, invalid_to_bottom=True),
    nms(0, return_indices=False),
    nms(threshold=0.1, force_suppress=True, return_indices=False),
    nms(threshold=0.5, top_k=7, return_indices=False),
    nms(threshold=0.5, top_k=7),
    nms(threshold=0.0, return_indices=False),
    nms(threshold=0.0),
    nms(2, data=DATA, return_indices=False),
    nms(data=NO_ID, id_index=-1, score_index=0, coord_start=1, return_indices=False, invalid_to_bottom=True),
    Expect(
        "vision.non_max_suppression",
        (FIRST, COUNTS),
        suppressed(FIRST, COUNTS, INDICES, 5, 0.4)[0],
        {"max_output_size": 5, "iou_threshold": 0.4, "return_indices": False},
    ),
    every_class(-1, 0.3, 0.2, "onnx"),
    every_class(2, 0.1, 0.0, "onnx"),
    every_class(3, 0.4, 0.5, "tensorflow"),
    every_class(2**63 - 1, 0.3, 0.2, "onnx"),
    nms(2**31 - 1, return_indices=False),
]
TESTED = {case.op for case in CASES}


def test_nms() -> None:
    check(CASES)


def test_refused() -> None:
    refused("vision.non_max_suppression", (FIRST, COUNTS, INDICES, LIMIT, np.float32(0.5)), {}, "at compile time")
    refused("vision.non_max_suppression", (FIRST, COUNTS, INDICES, LIMIT, IOU), {"coord_start": 3}, "coordinates at 3")
    refused("vision.get_valid_counts", (FIRST, IOU), {"score_index": 6}, "index 6")
    refused("vision.get_valid_counts", (FIRST.astype("int32"), IOU), {}, "boxes of int32")
