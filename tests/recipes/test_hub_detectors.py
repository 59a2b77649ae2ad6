"""Detectors of transformers and RF-DETR: boxes, labels and losses, weights from files, training runs."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from hydra.utils import instantiate
from lightning.pytorch import Callback
from safetensors.torch import save_file
from torch import Tensor

from lit_loader import ClassBalancedSamplerConfig, DetectionDataModule
from lit_loader.datasets import ShapesSource
from lit_loader.errors import LitLoaderError, SettingError
from lit_loader.recipes import DetectionTask, rfdetr_detector, transformers_detector
from lit_loader.recipes.weights import load_weights
from tests.support.drawn_batches import CLASSES, detection_batch, fit, overfit
from tests.support.lightning_ranks import on_ranks, trainer

transformers = pytest.importorskip("transformers")

CONF = Path(__file__).parents[2] / "conf" / "model"
RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage4"],
}
LEVELS = {"out_features": ["stage2", "stage3", "stage4"]}
WIDTHS = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_layers": 2}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
DETR = {
    **WIDTHS,
    **HEADS,
    "backbone_config": {**RESNET, "model_type": "resnet"},
    "encoder_layers": 1,
    "num_queries": 10,
    "auxiliary_loss": True,
    "dropout": 0.0,
}
RT_DETR = {
    **WIDTHS,
    **HEADS,
    "backbone_config": {**RESNET, **LEVELS, "model_type": "rt_detr_resnet"},
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [16, 16, 32],
    "decoder_in_channels": [32, 32, 32],
    "num_queries": 20,
    "num_denoising": 8,
}
HGNET = {
    **LEVELS,
    "model_type": "hgnet_v2",
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 16, 16, 16],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [16, 16, 16, 32],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
    "hidden_sizes": [16, 16, 16, 32],
    "depths": [1, 1, 1, 1],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "rt_detr": RT_DETR,
    "detr": DETR,
    "d_fine": {**RT_DETR, "backbone_config": HGNET},
    "deformable_detr": {
        **DETR,
        "num_feature_levels": 2,
        "backbone_config": {**RESNET, "model_type": "resnet", "out_features": ["stage3", "stage4"]},
    },
    "conditional_detr": DETR,
}
YOLOS = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_detection_tokens": 10,
    "image_size": [64, 64],
}
DAB_DETR = {**{key: value for key, value in DETR.items() if key != "d_model"}, "hidden_size": 32}
FURTHER_CONFIGS: dict[str, dict[str, Any]] = {"rt_detr_v2": RT_DETR, "dab-detr": DAB_DETR, "yolos": YOLOS}
RF_DETR = {
    "num_queries": 10,
    "num_select": 10,
    "group_detr": 2,
    "hidden_dim": 32,
    "sa_nheads": 2,
    "ca_nheads": 2,
    "out_feature_indexes": [1, 2],
    "dec_layers": 1,
}

pytestmark = [pytest.mark.filterwarnings("ignore:.*does not have many workers")]


def builder(name: str, **changes: Any) -> Any:
    config = {**{**CONFIGS, **FURTHER_CONFIGS}[name], **changes}
    return partial(transformers_detector, name=name, image_size=64, config=config)


def rf_detr(**arguments: Any) -> Any:
    pytest.importorskip("rfdetr")
    return rfdetr_detector(**{"size": "nano", "image_size": 64, "config": RF_DETR, **arguments})


def mixed_batch() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Images of two shapes, the second without objects."""
    images = [torch.rand(3, 50, 70), torch.rand(3, 90, 40)]
    boxes = [torch.tensor([[5.0, 5, 30, 40], [20, 10, 60, 45]]), torch.zeros(0, 4)]
    labels = [torch.tensor([1, 2]), torch.zeros(0, dtype=torch.int64)]
    return images, [{"boxes": b, "labels": label} for b, label in zip(boxes, labels, strict=True)]


# -- losses and detections -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CONFIGS, *FURTHER_CONFIGS])
def test_losses_sum_to_the_loss_of_transformers_and_every_parameter_has_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = builder(name)(num_classes=3).train()
    outputs: list[Any] = []
    model.detector.register_forward_hook(lambda *arguments: outputs.append(arguments[-1]))
    images, targets = mixed_batch()
    losses = model(images, targets)
    total = sum(losses.values())
    torch.testing.assert_close(total, outputs[0].loss)
    assert {"loss_bbox", "loss_giou"} < set(losses)
    assert all(float(losses[kind].detach()) > 0 for kind in ("loss_bbox", "loss_giou"))
    assert len(losses) <= len(outputs[0].loss_dict)
    empty = [{field: values[:0] for field, values in target.items()} for target in targets]
    for batch in (targets, empty):
        model.zero_grad()
        sum(model(images, batch).values()).backward()
        assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, {"height": 64, "width": 64}) for name in ("rt_detr", "detr", "d_fine", "deformable_detr")]
    + [(name, {"shortest_edge": 48, "longest_edge": 96}) for name in ("detr", "deformable_detr")],
)
def test_boxes_return_to_the_pixels_of_images_of_different_shapes(name: str, size: Any) -> None:
    model = transformers_detector(num_classes=3, name=name, config=CONFIGS[name], processor={"size": size}).eval()
    images, targets = mixed_batch()
    targets[1] = {"boxes": torch.tensor([[4.0, 50, 36, 88]]), "labels": torch.tensor([2])}
    labels: list[Any] = []

    def record(**inputs: Any) -> Any:
        """Record targets as transformers reads them."""
        labels.extend(inputs["labels"])
        loss = torch.ones((), requires_grad=True)
        return SimpleNamespace(loss=loss * 1, loss_dict={"loss_ce": loss})

    model.detector.forward = record
    model(images, targets)
    queries = max(len(target["class_labels"]) for target in labels)
    logits = torch.full((len(images), queries, 2 if name != "detr" else 3), -10.0)
    boxes = torch.full((len(images), queries, 4), 0.5)
    for i, target in enumerate(labels):
        count = len(target["class_labels"])
        logits[i, torch.arange(count), target["class_labels"]] = 10.0
        boxes[i, :count] = target["boxes"]
    model.detector.forward = lambda **_: SimpleNamespace(logits=logits, pred_boxes=boxes)
    for detections, target in zip(model(images), targets, strict=True):
        is_sure = detections["scores"] > 0.9
        order = detections["labels"][is_sure].argsort()
        torch.testing.assert_close(detections["boxes"][is_sure][order], target["boxes"])
        assert detections["labels"][is_sure][order].tolist() == target["labels"].tolist()


@pytest.mark.parametrize("name", ["rt_detr", "d_fine"])
def test_every_parameter_has_a_gradient_without_auxiliary_losses(name: str) -> None:
    model = builder(name, auxiliary_loss=False)(num_classes=3).train()
    sum(model(*mixed_batch()).values()).backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def assert_not_rounded_to_half_precision(model: Any, logits_name: str) -> None:
    """Check scores and boxes in pixels of a network whose outputs are in half precision, as under autocast."""
    outputs = {
        logits_name: torch.linspace(-1, 1, 20).reshape(1, 10, 2).bfloat16(),
        "pred_boxes": torch.linspace(0.3, 0.6, 40).reshape(1, 10, 4).bfloat16(),
    }
    model.detector.forward = lambda *_, **__: outputs if logits_name == "pred_logits" else SimpleNamespace(**outputs)
    (detections,) = model.eval()([torch.rand(3, 700, 900)])
    for field in ("scores", "boxes"):
        assert not torch.equal(detections[field], detections[field].bfloat16().float())
    with pytest.raises(ValueError, match=r"float32, got torch.bfloat16; pass precision='bf16-mixed'"):
        model.bfloat16()(mixed_batch()[0])


def test_half_precision_does_not_round_scores_and_boxes_again() -> None:
    assert_not_rounded_to_half_precision(builder("rt_detr")(num_classes=3), "logits")


def test_images_are_resized_normalised_and_padded_once() -> None:
    processor = {"size": {"shortest_edge": 48, "longest_edge": 96}}
    model = transformers_detector(num_classes=3, name="detr", config=DETR, processor=processor).eval()
    inputs: list[Any] = []
    model.detector.register_forward_pre_hook(lambda _, __, arguments: inputs.append(arguments), with_kwargs=True)
    with torch.no_grad():
        model([torch.ones(3, 48, 72), torch.ones(3, 96, 48)])
    pixels = inputs[0]["pixel_values"]
    mask = inputs[0]["pixel_mask"]
    assert pixels.shape == (2, 3, 96, 72)
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(pixels[0, :, 20, 20], white)
    assert mask.sum(dim=(1, 2)).tolist() == [48 * 72, 96 * 48]
    assert float(pixels[1, :, :, 48:].abs().max()) == 0


def test_rf_detr_learns_a_batch_and_its_boxes_return_to_pixels() -> None:
    torch.manual_seed(0)
    model = rf_detr(num_classes=3)
    images, targets = mixed_batch()
    losses = model.train()(images, targets)
    assert set(losses) == {"loss_ce", "loss_bbox", "loss_giou"}
    sum(losses.values()).backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    logits = torch.full((2, 3, 3), -10.0)
    logits[0, 0, 0] = logits[0, 1, 1] = 10.0
    logits[1, 2, 2] = 10.0  # no object
    boxes = torch.full((2, 3, 4), 0.5)
    boxes[0, :2] = torch.tensor([[17.5 / 70, 22.5 / 50, 25 / 70, 35 / 50], [40 / 70, 27.5 / 50, 40 / 70, 35 / 50]])
    model.detector.forward = lambda _: {"pred_logits": logits, "pred_boxes": boxes}
    detections, empty = model.eval()(images)
    torch.testing.assert_close(detections["boxes"][:2], targets[0]["boxes"])
    assert detections["labels"][:2].tolist() == [1, 2]
    assert not (empty["scores"] > 0.5).any()
    assert_not_rounded_to_half_precision(model, "pred_logits")


def test_frozen_backbones_stay_as_they_are() -> None:
    torch.manual_seed(0)
    model = DetectionTask(builder("detr"), class_names=CLASSES, freeze=["*backbone*"])
    initial_state = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    overfit(model, detection_batch(2), steps=1)
    changed = {name for name, value in model.model.state_dict().items() if not torch.equal(value, initial_state[name])}
    assert changed
    assert not any("backbone" in name for name in changed)


# -- weights ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights for 5 classes in half precision, in a folder that names code and a kernel to download."""
    path = tmp_path_factory.mktemp("hub") / "model"
    torch.manual_seed(1)
    model = builder("rt_detr")(num_classes=6)
    model.detector.half().save_pretrained(path)
    torch.save(model.detector.state_dict(), path.parent / "state.pt")
    model.processor.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    code = {"AutoConfig": "code.Config", "AutoModelForObjectDetection": "code.Model"}
    config |= {"_attn_implementation": "someone/kernel", "auto_map": code}
    (path / "config.json").write_text(json.dumps(config))
    (path / "code.py").write_text("raise SystemExit('code of a folder was run')")
    return path


def test_folder_gives_weights_for_other_classes_in_single_precision(folder: Path) -> None:
    build = partial(transformers_detector, name=str(folder))
    model = DetectionTask(build, class_names=CLASSES, weights="DEFAULT").model
    states = model.detector.state_dict(), torch.load(folder.parent / "state.pt", weights_only=True)
    equal = {name for name in states[1] if torch.equal(states[0][name], states[1][name].float())}
    assert all("class" in name or "score" in name for name in states[1].keys() - equal)
    assert len(equal) > 100
    assert {tensor.dtype for tensor in states[0].values()} <= {torch.float32, torch.int64}
    assert model.detector.config._attn_implementation in ("sdpa", "eager")
    assert model.processor.size["height"] == 64
    with torch.no_grad():
        detections, _ = model.eval()(mixed_batch()[0])
    assert set(detections["labels"].tolist()) <= {1, 2}
    random = DetectionTask(build, class_names=CLASSES).model
    assert random.state_dict().keys() == model.state_dict().keys()
    name = "detector.model.enc_output.0.weight"
    assert not torch.equal(random.state_dict()[name], model.state_dict()[name])


def test_pickled_weights_and_missing_folders_are_refused(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(LitLoaderError, match=r"only pickles: \['pytorch_model.bin'\]; load the model"):
        transformers_detector(num_classes=3, name=str(tmp_path), weights="DEFAULT")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(LitLoaderError, match=r"neither a type of transformers nor a folder.* give the folder of a"):
        transformers_detector(num_classes=3, name="someone/absent", weights="DEFAULT", revision="v1")
    with pytest.raises(LitLoaderError, match=r"neither a type of transformers nor a folder"):
        transformers_detector(num_classes=3, name=str(tmp_path / "missing"))


def changed_folder(folder: Path, target: Path, file: str = "config.json", **values: Any) -> str:
    """Copy a folder and change values of one of its files."""
    shutil.copytree(folder, target)
    content = json.loads((target / file).read_text())
    (target / file).write_text(json.dumps({**content, **values}))
    return str(target)


def test_weights_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    name = changed_folder(folder, tmp_path / "model")
    model = builder("detr")(num_classes=3).detector
    save_file(model.state_dict(), tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LitLoaderError, match=r"do not fit a RTDetrForObjectDetection.* tensors are missing"):
        transformers_detector(num_classes=3, name=name, weights="DEFAULT")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(LitLoaderError, match=r"model.safetensors of the folder .* cannot be read"):
        transformers_detector(num_classes=3, name=name, weights="DEFAULT")
    with pytest.raises(ValueError, match=r"give the folder as the builder's name"):
        load_weights(builder("rt_detr")(num_classes=3), folder / "model.safetensors")


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"num_queries": 10**8}, r"contains the number 100000000"),
        ("config.json", {"num_labels": 10**8}, r"contains the number 100000000"),
        ("config.json", {"decoder_layers": 90_000}, r"more than 2,000,000,000 weights"),
        ("config.json", {"d_model": 65_536}, r"more than 2,000,000,000 weights"),
        ("config.json", {"num_queries": "many"}, r"config.json of the folder .* cannot be read"),
        ("config.json", {"backbone": "local-dir:/x"}, r"backbone 'local-dir:/x' of another model"),
        ("config.json", {"backbone": "a", "use_timm_backbone": False}, r"backbone 'a' of another model"),
        ("preprocessor_config.json", {"size": {"height": 10**7, "width": 64}}, r"contains the number 10000000"),
        ("preprocessor_config.json", {"image_processor_type": "CLIPImageProcessor"}, r"is for no detector"),
        ("preprocessor_config.json", {"image_processor_type": "Code"}, r"preprocessor_config.json of the folder"),
    ],
)
def test_hostile_files_are_refused(folder: Path, tmp_path: Path, file: str, values: Any, message: str) -> None:
    name = changed_folder(folder, tmp_path / "model", file, **values)
    with pytest.raises(LitLoaderError, match=message):
        transformers_detector(num_classes=3, name=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": {"num_querys": 3}}, r"num_querys.* has no such setting; did you mean num_queries"),
        ({"config": {"to_dict": 1}}, r"config.to_dict=1 and RTDetrConfig has no such setting"),
        ({"config": {"num_labels": 1}}, r"config.num_labels"),
        ({"config": {"id2label": {}}}, r"config.id2label"),
        ({"config": {"dtype": "float16"}}, r"config.dtype"),
        ({"config": {"_attn_implementation": "x"}}, r"config._attn_implementation"),
        ({"processor": {"do_rescale": True}}, r"processor.do_rescale"),
        ({"processor": {"rescale_factor": 1}}, r"processor.rescale_factor"),
        ({"processor": {"size": {"height": 64, "width": 64}}, "image_size": 64}, r"set the same size"),
        ({"image_size": 0}, r"image_size=0 must be at least 32"),
        ({"image_size": 50}, r"image_size=50 must be a height and a width in multiples of 32"),
        ({"processor": {"size": {"shortest_edge": 64}}}, r"processor.size.* must be a height and a width"),
        ({"name": "bert"}, r"bert models detect no objects; take rt_detr"),
        ({"name": "rf_detr"}, r"model=rfdetr"),
        ({"revision": "v1"}, r"revision='v1' is for names on the hub"),
        ({"weights": "DEFAULT"}, r"rt_detr is a type of model, which has no weights"),
    ],
)
def test_settings_that_do_nothing_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        transformers_detector(num_classes=3, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": "huge"}, r"size='huge' must be one of nano"),
        ({"image_size": 65}, r"image_size=65 must be a multiple of 32"),
        ({"image_size": 0}, r"image_size=0 must be positive"),
        ({"config": {"num_classes": 9}}, r"the data has the classes"),
        ({"config": {"pretrain_weights": "x.pth"}}, r"give weights=FILE"),
        ({"config": {"resolution": 96}}, r"give image_size"),
        ({"config": {"device": "cuda"}}, r"the trainer chooses"),
        ({"config": {"segmentation_head": True}}, r"masks are not supported"),
    ],
)
def test_settings_of_rfdetr_that_do_nothing_are_refused(arguments: Any, message: str) -> None:
    pytest.importorskip("rfdetr")
    with pytest.raises(SettingError, match=message):
        rfdetr_detector(num_classes=3, **{"size": "nano", **arguments})


def test_rf_detr_reads_files_of_rfdetr_for_other_classes_and_sizes(tmp_path: Path) -> None:
    file = tmp_path / "rf-detr.pth"
    source = rf_detr(num_classes=4).detector
    torch.save({"model": source.state_dict(), "args": None}, file)
    model: Any = DetectionTask(partial(rf_detr, image_size=96), class_names=CLASSES, weights=str(file)).model
    name = "transformer.decoder.layers.0.self_attn.in_proj_weight"
    torch.testing.assert_close(model.detector.get_parameter(name), source.get_parameter(name))
    assert model.detector.class_embed.out_features == 3


def test_package_imports_transformers_and_rfdetr_only_when_they_are_used() -> None:
    # Not by sys.modules: torchmetrics imports transformers where it is installed.
    statement = re.compile(r"^ *(import|from) +(transformers|rfdetr)\b", re.MULTILINE)
    sources = list((CONF.parents[1] / "lit_loader").rglob("*.py"))
    assert len(sources) > 100
    assert [path.name for path in sources if statement.search(path.read_text())] == []


# -- training runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def datamodule(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = ShapesSource(
        num_images={"train": 12, "val": 4, "test": 4},
        image_size=64,
        cache_dir=str(tmp_path_factory.mktemp("shapes")),
        progress=False,
    )
    sampler = ClassBalancedSamplerConfig()
    module = partial(DetectionDataModule, source, batch_size=2, num_workers=0, seed=0, train_sampler=sampler)
    module().prepare_data()
    return module


class SaveAt(Callback):
    """Saves a checkpoint after a number of steps."""

    def __init__(self, step: int, path: Path) -> None:
        self.step = step
        self.path = path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def task(name: str, module: Any) -> DetectionTask:
    torch.manual_seed(0)
    if name == "rf_detr":
        return DetectionTask(rf_detr, class_names=module.class_names)
    build = builder(name, num_denoising=0) if name == "rt_detr" else builder(name)
    return DetectionTask(build, class_names=module.class_names)


@pytest.mark.parametrize("name", ["rt_detr", "detr", pytest.param("rf_detr", marks=pytest.mark.soak)])
def test_run_resumes_in_mid_epoch_to_equal_weights_and_is_scored(name: str, datamodule: Any, tmp_path: Path) -> None:
    module = datamodule()
    runs = [task(name, module) for _ in range(2)]
    file = tmp_path / "middle.ckpt"
    settings: dict[str, Any] = {"max_epochs": 1, "limit_val_batches": 1, "default_root_dir": tmp_path}
    settings |= {"num_sanity_val_steps": 0, "gradient_clip_val": 0.1}
    runner = trainer(**settings, callbacks=[SaveAt(3, file)])
    runner.fit(runs[0], datamodule=module)
    assert runner.global_step == 6
    resuming_runner = trainer(**settings)
    resuming_runner.fit(runs[1], datamodule=datamodule(), ckpt_path=file)
    assert resuming_runner.global_step == 6
    first, resumed = (run.state_dict() for run in runs)
    middle = torch.load(file, weights_only=True)["state_dict"]
    assert all(torch.equal(first[key], resumed[key]) for key in first)
    assert not all(torch.equal(first[key], middle[key]) for key in first)
    (scores,) = runner.test(runs[0], datamodule=module, verbose=False)
    assert {"test/map", "test/map_50"} <= set(scores)
    predictions = runner.predict(runs[0], module.test_dataloader())
    assert {"boxes", "labels", "scores"} <= set(predictions[0][0])


def _train_on_rank(folder: Path, datamodule: Any) -> None:
    torch.set_num_threads(1)
    module = datamodule(batch_size=1)
    model = task("rt_detr", module)
    trainer(max_steps=2, limit_val_batches=1, num_sanity_val_steps=0, default_root_dir=folder).fit(
        model, datamodule=module
    )
    torch.save(model.state_dict(), folder / f"{dist.get_rank()}.pt")


def test_two_ranks_have_equal_weights(datamodule: Any, tmp_path: Path) -> None:
    on_ranks(2, tmp_path, _train_on_rank, tmp_path, datamodule)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    trained = [name for name in first if "running" not in name]
    assert all(torch.equal(first[name], second[name]) for name in trained)


@pytest.mark.parametrize("name", ["transformers", pytest.param("rfdetr", marks=pytest.mark.soak)])
def test_shipped_config_takes_a_step_and_is_scored(name: str, tmp_path: Path) -> None:
    config = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    small = {"name": "rt_detr", "config": RT_DETR} if name == "transformers" else {"size": "nano", "config": RF_DETR}
    config["model"] |= {**small, "image_size": 64}
    model = instantiate(config, weights=None, class_names=CLASSES, _convert_="all")
    runner = fit(model, [detection_batch(2)], tmp_path)
    assert {"test/map", "test/map_50"} <= set(runner.callback_metrics)
    rates = {group["lr"] for group in model.configure_optimizers()["optimizer"].param_groups}
    assert len(rates) == 2
    assert max(rates) / min(rates) == pytest.approx(10)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["rt_detr", "detr"])
def test_batch_is_learned(name: str) -> None:
    torch.manual_seed(0)
    batch = detection_batch(4)
    model = DetectionTask(builder(name), class_names=CLASSES)
    losses = overfit(model, batch, steps=150)
    assert losses[-1] < 0.4 * losses[0]
