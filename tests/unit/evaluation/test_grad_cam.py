"""Grad-CAM of layers and of predictions."""

import math

import pytest
import torch
from torch import nn

from benchmarks.fed_align_cl_ham10000.cases import scenarios, share_inside
from grandrounds.evaluation.explanation import (
    class_activation,
    last_maps,
    prediction_maps,
)
from grandrounds.models.depths import DepthNetwork, depth_head
from grandrounds.models.registry import BACKBONES, build_model, minimum_image_size
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator


class BrightSpots(nn.Module):
    """Class 1 is the mean of channel 0 of a copying layer, class 0 that of channel 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.AvgPool2d(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images).mean(dim=(2, 3)).flip(1)


def spots() -> torch.Tensor:
    images = torch.zeros(2, 2, 32, 32)
    images[0, 0, 4:8, 20:24] = 1
    images[1, 1, 4:8, 20:24] = 1
    return images


def test_the_map_of_a_class_is_where_its_evidence_is():
    network = BrightSpots().eval()
    maps = class_activation(network, [network.layer], spots())
    assert maps.shape == (2, 32, 32)
    assert float(maps[0].max()) == 1
    y, x = divmod(int(maps[0].argmax()), 32)
    assert (4 <= y < 8, 20 <= x < 24) == (True, True)
    assert float(maps[1].abs().max()) == 0, "what speaks against the class is not shown"
    other = class_activation(network, [network.layer], spots(), positive=0)
    assert float(other[0].abs().max()) == 0
    assert float(other[1].max()) == 1


def test_a_certain_network_still_has_a_map():
    """The gradient of the probability would be zero in single precision, that of the logits' difference is not."""
    network = BrightSpots().eval()
    images = spots() * 1e5
    assert float(network(images)[0].softmax(0)[1]) == 1.0
    assert float(class_activation(network, [network.layer], images)[0].max()) == 1


def maps_of_monai(network, layer, images, positive):
    """MONAI's Grad-CAM of one class, by our score and scaled as ours."""
    from monai.visualize import GradCAM  # seconds, which the collection of tests need not spend
    from monai.visualize.class_activation_maps import ModelWithHooks

    class AgainstOthers(ModelWithHooks):
        """MONAI's pass of a network with our score: one class against all others."""

        def class_score(self, logits, class_idx):
            others = [index for index in range(logits.shape[1]) if index != class_idx]
            return logits[:, class_idx] - logits[:, others].logsumexp(1)

    found = GradCAM(AgainstOthers(network, layer, True, True), layer, postprocessing=lambda maps: maps)
    maps = found(images, class_idx=positive)[:, 0].detach()
    return maps / maps.amax(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)


def test_a_map_is_that_of_the_formula_and_of_monai():
    """Two channels, two classes: the logits are 3 mean(A0) + mean(A1) and mean(A1), so only A0 counts, by 3 / 4."""
    network = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([1.0, -2.0])[:, None, None, None])
        network[3].weight.copy_(torch.tensor([[3.0, 1.0], [0.0, 1.0]]))
    image = torch.tensor([[[[4.0, 1.0], [-1.0, 2.0]]]])
    (found,) = class_activation(network.eval(), [network[0]], image, positive=0)
    torch.testing.assert_close(found, torch.tensor([[4.0, 1.0], [0.0, 2.0]]) / 4)
    torch.testing.assert_close(found, maps_of_monai(network, "0", image, 0)[0])


@pytest.mark.parametrize("backbone", ["compact", "resnet9", "resnet18", "efficientnet_lite0", "monai:resnet10"])
def test_maps_of_a_backbone_are_those_of_monai(backbone):
    network = build_model(ModelSpec(backbone, classes=3), seed=1).eval()
    side = 2 * minimum_image_size(backbone)
    images = torch.rand(2, 3, side, side, generator=torch_generator("images"))
    layer = last_maps(network, images[:1])
    name = next(name for name, module in network.named_modules() if module is layer)
    found = torch.cat([class_activation(network, [layer], images, number) for number in range(3)])
    expected = torch.cat([maps_of_monai(network, name, images, number) for number in range(3)])
    assert float(expected.amax()) == 1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("frozen", [True, False])
def test_the_last_stage_of_resnet22_is_explained_without_leaving_a_trace(frozen):
    network = build_model(ModelSpec("resnet22", 2, channels=1), seed=1).eval().requires_grad_(not frozen)
    images = torch.randn(2, 1, 128, 128, generator=torch_generator("images"))
    with torch.no_grad():
        maps = class_activation(network, [network.blocks[-1]], images)
        maps_of_one = class_activation(network, [network.blocks[-1]], images[:1])
    assert maps.shape == (2, 128, 128)
    torch.testing.assert_close(maps[:1], maps_of_one, atol=1e-4, rtol=1e-3)
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not network.blocks[-1]._forward_hooks


def test_a_network_in_training_or_a_layer_that_is_not_passed_is_refused():
    network = BrightSpots()
    with pytest.raises(ValueError, match="must be in evaluation mode"):
        class_activation(network, [network.layer], spots())
    with pytest.raises(ValueError, match="pass the layer once, got 0 times"):
        class_activation(network.eval(), [nn.Identity()], spots())


def test_shares_are_counted():
    maps = torch.tensor([[[1.0, 1.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
    masks = torch.tensor([[[True, False], [True, False]]]).expand(2, 2, 2)
    shares = share_inside(maps, masks)
    assert float(shares[0]) == 0.25
    assert math.isnan(shares[1])


@pytest.mark.parametrize(
    ("maps", "masks", "message"),
    [
        (torch.zeros(1, 2, 2), torch.zeros(1, 2, 3, dtype=torch.bool), "must have one shape"),
        (torch.zeros(1, 2, 2), torch.zeros(1, 2, 2), "masks of bool"),
        (-torch.ones(1, 2, 2), torch.ones(1, 2, 2, dtype=torch.bool), "maps must be at least zero"),
    ],
)
def test_invalid_maps_and_masks_are_refused(maps, masks, message):
    with pytest.raises(ValueError, match=message):
        share_inside(maps, masks)


def test_the_four_scenarios():
    right = {
        "fed": torch.tensor([True, False, False, True, False]),
        "fed_align": torch.tensor([True, False, False, True, True]),
        "fed_align_cl": torch.tensor([True, False, True, False, True]),
    }
    found = {name: rows.tolist() for name, rows in scenarios(right, "fed_align_cl", "fed_align").items()}
    assert found == {
        "all_right": [0], "all_wrong": [1], "ours_right_others_wrong": [2], "reference_right_ours_wrong": [3]
    }  # fmt: skip
    with pytest.raises(ValueError, match="predictions of mix are missing"):
        scenarios(right, "fed_align_cl", "mix")
    with pytest.raises(ValueError, match="predictions of a second method are missing"):
        scenarios({"fed": right["fed"]}, "fed", "fed")


def bright_or_dark():
    """Class 0 for bright images, class 1 for dark ones: the maps are brightness and darkness themselves."""
    maps = nn.Conv2d(1, 2, 1)
    head = nn.Linear(2, 2)
    with torch.no_grad():
        maps.weight.copy_(torch.tensor([1.0, -1.0])[:, None, None, None])
        maps.bias.copy_(torch.tensor([0.0, 1.0]))
        head.weight.copy_(torch.eye(2))
        head.bias.zero_()
    return nn.Sequential(maps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


def test_maps_are_those_before_pooling():
    network = bright_or_dark()
    assert last_maps(network, torch.zeros(1, 1, 4, 4)) is network[0]


class Attending(nn.Module):
    """Maps of a convolution; then attention between their positions, whose module gives a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.attention, self.head = nn.Conv2d(1, 4, 3), nn.MultiheadAttention(4, 2), nn.Linear(4, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        positions = self.maps(images).flatten(2).permute(2, 0, 1)
        return self.head(self.attention(positions, positions, positions)[0].mean(dim=0))


def test_layers_that_give_tuples_have_no_maps():
    network = Attending().eval()
    assert last_maps(network, torch.zeros(1, 1, 8, 8)) is network.maps


def test_each_image_is_explained_by_its_own_prediction():
    images = torch.zeros(2, 1, 4, 4)
    images[0] = 0.8
    images[0, 0, :, 0] = 1.0  # bright, most so at the left
    images[1, 0, :, 3] = 0.5  # dark, least so at the right
    network = bright_or_dark()
    assert network(images).argmax(dim=1).tolist() == [0, 1]
    bright, dark = prediction_maps(network, images)
    assert bright[:, 0] == pytest.approx(1)
    assert (bright[:, 1:] < 1).all()
    assert dark[:, :3] == pytest.approx(1)
    assert (dark[:, 3] < 1).all()


@pytest.mark.parametrize("backbone", ["compact", "densenet121", "resnet10", "monai:DenseNet121", "timm:test_resnet"])
def test_backbones_have_maps_of_the_images_size(backbone):
    network = build_model(ModelSpec(backbone=backbone, classes=3), seed=1).eval()
    maps = prediction_maps(network, torch.rand(2, 3, 64, 64))
    assert maps.shape == (2, 64, 64)
    assert maps.min() >= 0
    assert maps.max() <= 1


def test_a_head_on_several_depths_adds_the_evidence_of_each():
    """The first layer copies an image x, the second gives 1 - x."""
    chain = nn.Sequential()
    chain.first, chain.second = nn.Conv2d(1, 1, 1, bias=False), nn.Conv2d(1, 1, 1)
    chain.pool, chain.flat, chain.head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2)
    with torch.no_grad():
        chain.first.weight.fill_(1.0)
        chain.second.weight.fill_(-1.0)
        chain.second.bias.fill_(1.0)
    network = DepthNetwork(chain, ["first", "second"], {"first": 1}, classes=2).eval()
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, 1, 2] = 1.0
    bright = image[0, 0].numpy()
    # 3 means of the first layer, 5 deviations, which do not show, and the mean of the second: 3 x + (1 - x), to at most 1.
    depth_head(network).set_linear(torch.tensor([[3.0, 5.0, 1.0], [0.0, 0.0, 0.0]]), torch.zeros(2))
    (found,) = prediction_maps(network, image)
    assert found == pytest.approx((1 + 2 * bright) / 3)
    # The second layer speaks against class 0.
    depth_head(network).set_linear(torch.tensor([[3.0, 5.0, -1.0], [0.0, 0.0, 0.0]]), torch.zeros(2))
    (found,) = prediction_maps(network, image)
    assert found == pytest.approx(bright)


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_every_backbone_with_a_head_on_several_depths_has_maps(backbone):
    network = build_model(ModelSpec(backbone, classes=3, head="depths"), seed=1).eval()
    side = 2 * minimum_image_size(backbone)
    maps = prediction_maps(network, torch.rand(1, 3, side, side))
    assert maps.shape == (1, side, side)
    assert maps.max() <= 1


def test_a_network_without_maps_is_refused():
    with pytest.raises(ValueError, match="has no part that gives maps"):
        prediction_maps(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval(), torch.zeros(1, 1, 2, 2))
