"""Detection's operators through the whole pipeline: partitioned, outlined, built, and still right."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from subtune.artifact import load
from subtune.driver import compile_model
from tests.frontends.relay.test_detection import INFO, RPN_DELTA, RPN_PROB, aligned, pooled, proposed
from tests.frontends.relay.test_detection import MAP as FEATURES
from tests.frontends.relay.test_detection import ROIS as REGIONS
from tests.frontends.relay.test_nms import DATA, suppressed, to_bottom, valid_counts


def run(text: str, tmp_path: Path, **arrays: np.ndarray) -> list[np.ndarray]:
    model, path = tmp_path / "m.relay", tmp_path / "m.subtune"
    model.write_text('#[version = "0.0.5"]\n' + text, encoding="utf-8")
    compile_model(model, path, tune=False, threads=1, database=tmp_path / "t.db")
    return list(load(path).run(arrays).values())


def test_suppression(tmp_path: Path) -> None:
    text = """def @main(%x: Tensor[(3, 40, 6), float32]) {
      %0 = vision.get_valid_counts(%x, 0.05f);
      %1 = %0.1;
      %2 = %0.0;
      %3 = %0.2;
      %4 = vision.non_max_suppression(%1, %2, %3, -1, 0.3f, return_indices=False, invalid_to_bottom=True);
      %5 = vision.non_max_suppression(%1, %2, %3, 5, 0.3f, force_suppress=True);
      %6 = split(%4, indices_or_sections=[1, 2], axis=2);
      (%6.0, %6.1, %6.2, %5.0)
    }"""
    counts, boxes, indices = valid_counts(DATA, 0.05)
    found = run(text, tmp_path, x=DATA)
    kept = to_bottom(suppressed(boxes, counts, indices, -1, 0.3)[0])
    np.testing.assert_allclose(np.concatenate(found[:3], -1), kept, rtol=1e-6)
    np.testing.assert_array_equal(found[3], suppressed(boxes, counts, indices, 5, 0.3, force=True)[1])


def test_regions(tmp_path: Path) -> None:
    text = """def @main(%x: Tensor[(2, 3, 8, 9), float32], %rois: Tensor[(5, 5), float32],
        %prob: Tensor[(2, 8, 4, 5), float32], %delta: Tensor[(2, 16, 4, 5), float32], %info: Tensor[(2, 3), float32]) {
      %0 = vision.roi_align(%x, %rois, pooled_size=[2, 3], spatial_scale=0.5f);
      %1 = vision.roi_pool(%x, %rois, pooled_size=[2, 3], spatial_scale=0.5f);
      %2 = add(%0, %1);
      %3 = vision.proposal(%prob, %delta, %info, scales=[2f, 4f], ratios=[0.5f, 2f], threshold=0.5f,
        rpn_pre_nms_top_n=50, rpn_post_nms_top_n=12);
      (%2, %3)
    }"""
    found = run(text, tmp_path, x=FEATURES, rois=REGIONS, prob=RPN_PROB, delta=RPN_DELTA, info=INFO)
    np.testing.assert_allclose(found[0], aligned((2, 3), 0.5, -1, "avg") + pooled((2, 3), 0.5), rtol=1e-4, atol=1e-4)
    like = proposed((2.0, 4.0), (0.5, 2.0), 16, 0.5, 50, 12, 16, False)
    np.testing.assert_allclose(found[1], like, rtol=1e-4, atol=1e-3)
