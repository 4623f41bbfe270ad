"""Small networks as TVM's importers write them, with random weights: imported, fused, built, run."""

from __future__ import annotations

import numpy as np
import pytest

from subtune.artifact import load as load_artifact
from subtune.artifact.random_inputs import random_inputs
from subtune.driver import compile_model

HEADER = '#[version = "0.0.5"]\n'


def vector(*names: str, size: int) -> str:
    return ", ".join(f"%{name}: Tensor[({size}), float32]" for name in names)


# Darknet's importer: batch norms, leaky activations, a pool that pads at the end, upsampling, boxes decoded.
YOLO = f"""def @main(%data: Tensor[(1, 3, 32, 32), float32], %c1_weight: Tensor[(8, 3, 3, 3), float32],
    {vector("bn1_gamma", "bn1_beta", "bn1_mean", "bn1_var", size=8)}, %c2_weight: Tensor[(16, 8, 3, 3), float32],
    %c2_bias: Tensor[(16), float32], %c3_weight: Tensor[(18, 24, 1, 1), float32], %c3_bias: Tensor[(18), float32],
    %anchors: Tensor[(1, 3, 2, 1, 1), float32]) {{
  %0 = nn.conv2d(%data, %c1_weight, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
  %1 = nn.batch_norm(%0, %bn1_gamma, %bn1_beta, %bn1_mean, %bn1_var);
  %2 = nn.leaky_relu(%1.0, alpha=0.1f);
  %3 = nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  %4 = nn.conv2d(%3, %c2_weight, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
  %5 = nn.leaky_relu(nn.bias_add(%4, %c2_bias), alpha=0.1f);
  %6 = nn.max_pool2d(%5, pool_size=[2, 2], strides=[1, 1], padding=[0, 0, 1, 1]);
  %7 = nn.upsampling(%6, scale_h=2f, scale_w=2f);
  %8 = (%7, %2);
  %9 = concatenate(%8, axis=1);
  %10 = nn.bias_add(nn.conv2d(%9, %c3_weight, padding=[0, 0, 0, 0], channels=18, kernel_size=[1, 1]), %c3_bias);
  %11 = reshape(%10, newshape=[1, 3, 6, 32, 32]);
  %12 = split(%11, indices_or_sections=[2, 4], axis=2);
  %13 = sigmoid(%12.0);
  %14 = multiply(exp(%12.1), %anchors);
  %15 = (%13, %14, sigmoid(%12.2));
  %16 = concatenate(%15, axis=2);
  transpose(reshape(%16, newshape=[0, 3, 6, -1]), axes=[0, 1, 3, 2])
}}"""

# PyTorch's importer: dilation, resizing, a transposed convolution, a map of classes.
SEGMENTATION = f"""def @main(%input: Tensor[(1, 3, 24, 24), float32], %stem.0.weight: Tensor[(8, 3, 3, 3), float32],
    {vector("stem.1.weight", "stem.1.bias", "stem.1.running_mean", "stem.1.running_var", size=8)},
    %aspp.weight: Tensor[(8, 8, 3, 3), float32], %pool.weight: Tensor[(8, 8, 1, 1), float32],
    %up.weight: Tensor[(16, 5, 4, 4), float32], %up.bias: Tensor[(5), float32]) {{
  %0 = nn.conv2d(%input, %stem.0.weight, strides=[2, 2], padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
  %1 = nn.batch_norm(%0, %stem.1.weight, %stem.1.bias, %stem.1.running_mean, %stem.1.running_var);
  %2 = nn.relu(%1.0);
  %3 = nn.conv2d(%2, %aspp.weight, padding=[2, 2, 2, 2], dilation=[2, 2], channels=8, kernel_size=[3, 3]);
  %4 = nn.adaptive_avg_pool2d(%2, output_size=[1, 1]);
  %5 = nn.conv2d(%4, %pool.weight, padding=[0, 0, 0, 0], channels=8, kernel_size=[1, 1]);
  %6 = image.resize2d(nn.relu(%5), size=[12, 12], roi=[0f, 0f, 0f, 0f], rounding_method="", cubic_alpha=-0.75f);
  %7 = (nn.relu(%3), %6);
  %8 = nn.dropout(concatenate(%7, axis=1), rate=0.1f);
  %9 = nn.conv2d_transpose(%8.0, %up.weight, channels=5, kernel_size=[4, 4], strides=[2, 2], padding=[1, 1, 1, 1]);
  %10 = nn.bias_add(%9, %up.bias);
  %11 = image.resize2d(%10, size=[30, 30], roi=[0f, 0f, 0f, 0f], coordinate_transformation_mode="align_corners",
                       rounding_method="");
  (%11, argmax(%11, axis=[1]))
}}"""

# ONNX's importer: swish, squeeze-and-excite, a depthwise convolution, a residual.
EFFICIENT = f"""def @main(%x: Tensor[(2, 3, 16, 16), float32], %a_weight: Tensor[(12, 3, 1, 1), float32],
    {vector("a_b", "dw_b", size=12)}, %dw_weight: Tensor[(12, 1, 5, 5), float32],
    %se1_w: Tensor[(4, 12, 1, 1), float32],
    %se1_b: Tensor[(4), float32], %se2_w: Tensor[(12, 4, 1, 1), float32], %se2_b: Tensor[(12), float32],
    %fc.weight: Tensor[(10, 12), float32], %fc.bias: Tensor[(10), float32]) {{
  %0 = nn.bias_add(nn.conv2d(%x, %a_weight, padding=[0, 0, 0, 0], channels=12, kernel_size=[1, 1]), %a_b);
  %1 = sigmoid(%0);
  %2 = multiply(%0, %1);
  %3 = nn.conv2d(%2, %dw_weight, padding=[2, 2, 2, 2], groups=12, channels=12, kernel_size=[5, 5]);
  %4 = clip(nn.bias_add(%3, %dw_b), a_min=0f, a_max=6f);
  %5 = mean(%4, axis=[2, 3], keepdims=True);
  %6 = nn.relu(nn.bias_add(nn.conv2d(%5, %se1_w, padding=[0, 0, 0, 0], channels=4, kernel_size=[1, 1]), %se1_b));
  %7 = nn.bias_add(nn.conv2d(%6, %se2_w, padding=[0, 0, 0, 0], channels=12, kernel_size=[1, 1]), %se2_b);
  %8 = clip(divide(add(%7, 3f), 6f), a_min=0f, a_max=1f);
  %9 = add(multiply(%4, %8), %2);
  %10 = nn.batch_flatten(nn.global_avg_pool2d(%9));
  %11 = nn.dense(%10, %fc.weight, units=10);
  nn.log_softmax(add(%11, %fc.bias))
}}"""

# TFLite's importer: NHWC, pads of their own, weights without names.
TFLITE = """def @main(%input: Tensor[(1, 17, 17, 3), float32], %v_param_1: Tensor[(3, 3, 3, 8), float32],
    %v_param_2: Tensor[(8), float32], %v_param_3: Tensor[(3, 3, 8, 1), float32], %v_param_4: Tensor[(8), float32],
    %v_param_5: Tensor[(1, 1, 8, 6), float32], %v_param_6: Tensor[(6), float32]) {
  %0 = nn.pad(%input, 0f, pad_width=[[0, 0], [0, 1], [0, 1], [0, 0]]);
  %1 = nn.conv2d(%0, %v_param_1, strides=[2, 2], padding=[0, 0, 0, 0], channels=8, kernel_size=[3, 3],
                 data_layout="NHWC", kernel_layout="HWIO");
  %2 = clip(nn.bias_add(%1, %v_param_2, axis=3), a_min=0f, a_max=6f);
  %3 = nn.conv2d(%2, %v_param_3, padding=[1, 1, 1, 1], groups=8, channels=8, kernel_size=[3, 3], data_layout="NHWC",
                 kernel_layout="HWOI");
  %4 = clip(nn.bias_add(%3, %v_param_4, axis=3), a_min=0f, a_max=6f);
  %5 = nn.avg_pool2d(%4, pool_size=[8, 8], strides=[8, 8], padding=[0, 0, 0, 0], layout="NHWC");
  %6 = nn.conv2d(%5, %v_param_5, padding=[0, 0, 0, 0], channels=6, kernel_size=[1, 1], data_layout="NHWC",
                 kernel_layout="HWIO");
  %7 = reshape(nn.bias_add(%6, %v_param_6, axis=3), newshape=[1, 6]);
  nn.softmax(%7, axis=1)
}"""

# The same importer on a quantised model.
QUANTISED = """def @main(%input: Tensor[(1, 9, 9, 3), uint8], %v_param_1: Tensor[(3, 3, 3, 8), uint8],
    %v_param_2: Tensor[(8), int32], %v_param_3: Tensor[(5, 8), uint8], %v_param_4: Tensor[(5), int32]) {
  %0 = qnn.conv2d(%input, %v_param_1, 128, 122, 0.0078125f, 0.0339f, padding=[1, 1, 1, 1], channels=8,
                  kernel_size=[3, 3], data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32");
  %1 = nn.bias_add(%0, %v_param_2, axis=3);
  %2 = qnn.requantize(%1, 0.000264f, 0, 0.0235f, 0, axis=3, out_dtype="uint8");
  %3 = qnn.add(%2, %2, 0.0235f, 0, 0.0235f, 0, 0.05f, 3);
  %4 = nn.avg_pool2d(cast(%3, dtype="int32"), pool_size=[9, 9], strides=[9, 9], padding=[0, 0, 0, 0], layout="NHWC");
  %5 = reshape(cast(%4, dtype="uint8"), newshape=[1, 8]);
  %6 = qnn.dense(%5, %v_param_3, 3, 120, 0.05f, 0.01f, units=5, out_dtype="int32");
  %7 = qnn.requantize(nn.bias_add(%6, %v_param_4), 0.0005f, 0, 0.1f, 60, out_dtype="uint8");
  nn.softmax(qnn.dequantize(%7, 0.1f, 60))
}"""

NETWORKS = {
    "yolo": YOLO,
    "segmentation": SEGMENTATION,
    "efficient": EFFICIENT,
    "tflite": TFLITE,
    "quantised": QUANTISED,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, tmp_path):
    report = compile_model(
        HEADER + NETWORKS[name], tmp_path / "m", random_params=True, tune=False, threads=1, database=tmp_path / "db"
    )
    assert "agrees with the untuned build" in report.verified
    artifact = load_artifact(tmp_path / "m")
    assert len(artifact.inputs) == 1
    outputs = artifact.run(random_inputs(artifact.inputs, 1, {"input": 256}))
    for array in outputs.values():
        assert np.isfinite(array).all()
        assert np.ptp(array.astype(np.float64)) > 0
