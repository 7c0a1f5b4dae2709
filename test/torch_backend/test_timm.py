"""The image models that people have: one of each family of `timm`, the smallest, on images of its own size,
beside eager PyTorch in float64, where no rounding lets another item be a window's largest, and forward passes
of a few in float32 too.

A few run by default, all of `FAMILIES` with `-m slow`. They take `timm` and `torchvision`; beside a CPU build
of PyTorch `pip install --no-deps timm torchvision==0.28.0` is enough.
"""
from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")

from .models_beside_eager import (  # noqa: E402
    infers_as_eager,
    infers_as_eager_in_float64,
    trains_as_eager_in_float64,
)

FAMILIES = [
    "beit_base_patch16_224", "halonet_h1", "mobileone_s1", "cait_xxs24_224", "coat_tiny", "convit_tiny",
    "convmixer_768_32", "convnext_zepto_rms", "cpubone_nano", "crossvit_tiny_240", "csatv2",
    "cs3darknet_focus_s", "cspnext_tiny", "davit_tiny", "deit_tiny_patch16_224", "densenet121",
    "dla46x_c", "dpn48b", "edgenext_xx_small", "efficientformer_l1", "efficientformerv2_s0", "tinynet_e",
    "efficientvim_m1", "efficientvit_b0", "efficientvit_m0", "eva02_tiny_patch14_224", "fasternet_t0",
    "fastvit_t8", "focalnet_tiny_srf", "gcvit_xxtiny", "ghostnet_050", "hardcorenas_b", "hgnetv2_b0",
    "hiera_tiny_224", "hieradet_small", "hrnet_w18_small", "iformer_t", "inception_next_atto",
    "inception_resnet_v2", "inception_v3", "inception_v4", "lcnetv2_small", "levit_128s", "lowformer_b0",
    "mambaout_femto", "maxvit_pico_rw_256", "poolformerv2_s12", "gmlp_ti16_224", "lcnet_035",
    "mobilenetv5_base", "mobilevit_xxs", "mvitv2_tiny", "naflexvit_base_patch16_parfac_gap", "nest_tiny",
    "nextvit_small", "nf_regnet_b0", "pit_ti_224", "pvt_v2_b0", "rdnet_tiny", "regnetx_002",
    "repghostnet_050", "repvit_m1", "res2next50", "resnest14d", "resnet10t", "resnetv2_18", "rexnet_100",
    "selecsls42", "legacy_seresnet18", "sequencer2d_s", "shvit_s1", "skresnet18", "starnet_s050",
    "swiftformer_xs", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "swinv2_cr_tiny_224",
    "tiny_vit_5m_224", "tnt_s_legacy_patch16_224", "tresnet_m", "twins_svt_small", "vgg11",
    "visformer_tiny", "vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "vit_srelpos_small_patch16_224",
    "samvit_base_patch16_224", "vitamin_small_224", "volo_d1_224", "ese_vovnet19b_slim_dw",
    "legacy_xception", "xception41p", "xcit_nano_12_p8_224",
]
"""Left out are those of 80 million parameters on large images: DeepSeek's, Gemma's, Qwen's, NASNet."""
BY_DEFAULT = ("lcnet_035", "convnext_zepto_rms", "vit_tiny_patch16_224")


def image_models() -> Any:
    """The module timm, which imports torchvision. Of that PyPI has builds for GPUs, whose compiled operators
    a CPU build of PyTorch does not load; no model calls them, but their names have to be there."""
    for name in ("timm", "torchvision"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the models are those of timm: no {name}", allow_module_level=True)
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float threshold) -> Tensor")
    return importlib.import_module("timm")


timm = image_models()


class OfImages(torch.nn.Module):
    """A model whose results are a tuple, and that leaves nothing out at random."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = timm.create_model(name, num_classes=10, drop_rate=0.0)
        for layer in self.model.modules():
            for field in ("drop_prob", "p"):  # of DropPath and of Dropout
                if isinstance(getattr(layer, field, None), float):
                    setattr(layer, field, 0.0)

    def forward(self, images: Any) -> tuple[Any, ...]:
        return (self.model(images),)


def model_and_images(name: str) -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
    size = timm.get_pretrained_cfg(name).input_size
    return lambda: OfImages(name), lambda: {"images": torch.randn(2, *size)}


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_an_image_model_is_that_of_eager(name: str) -> None:
    infers_as_eager(*model_and_images(name))
    trains_as_eager_in_float64(*model_and_images(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in BY_DEFAULT])
def test_each_image_model_is_that_of_eager(name: str) -> None:
    infers_as_eager_in_float64(*model_and_images(name))
    trains_as_eager_in_float64(*model_and_images(name))
