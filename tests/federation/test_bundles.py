"""MONAI bundles are federated: one whose network MONAI builds, and one that the package has exported."""

import json

import pytest
import torch

import grandrounds as gr

SMALL = {"executor.steps": 2, "executor.batch_size": 4, "executor.learning_rate": 1e-4}
SIDE = 64


@pytest.fixture(scope="module")
def of_monai(tmp_path_factory):
    """A bundle of DenseNet121 for five classes, and its first entry under the name that it has in a run."""
    folder = tmp_path_factory.mktemp("monai")
    for name in ("configs", "models"):
        (folder / name).mkdir()
    definition = {"_target_": "DenseNet121", "spatial_dims": 2, "in_channels": 3, "out_channels": 5}
    (folder / "configs" / "inference.json").write_text(json.dumps({"network_def": definition}))
    from monai.networks.nets import DenseNet121  # seconds, which the collection of tests need not spend

    network = DenseNet121(spatial_dims=2, in_channels=3, out_channels=5)
    torch.save(network.state_dict(), folder / "models" / "model.pt")
    return folder, "monai:DenseNet121", "encoder.features.conv0.weight", network.features.conv0.weight.detach()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The bundle of a run whose logits are averaged over two views, and the weights of its last layer."""
    folder = tmp_path_factory.mktemp("exported")
    options = {**SMALL, "problem.test_view": "half_turn", "problem.intensities": "standardised"}
    run = gr.run("fedavg", 2, rounds=1, image_size=SIDE, options=options, workspace=folder / "run", progress=False)
    run.export(folder / "model")
    name = [name for name, value in run.model.named_parameters() if value.dim() == 2][-1]
    return folder / "model" / "bundle", "compact", name, run.model.get_parameter(name).detach()


@pytest.mark.parametrize(("source", "method"), [("of_monai", "fedavg"), ("exported", "fedperl")])
def test_a_bundle_is_federated_for_two_rounds(request, tmp_path, source, method):
    bundle, backbone, name, start = request.getfixturevalue(source)
    options = {**SMALL, "problem.weights": str(bundle)}
    if source == "of_monai":
        options["problem.intensities"] = "imagenet"
    run = gr.run(
        method, 2, rounds=2, image_size=SIDE, backbone=backbone, options=options, workspace=tmp_path, progress=False
    )
    assert run.summary["status"] == "finished"
    expected = "imagenet" if source == "of_monai" else "standardised"
    assert run.summary["configuration"]["problem"]["intensities"] == expected
    moved = (run.model.get_parameter(name) - start).abs().max()
    assert 0 < moved < 0.01
    assert run.scores().loc["pooled", "images"] > 0
