"""Speech, audio and time series architectures of transformers, in small sizes."""

from typing import Any

from benchmarks.corpus.entries import Entry, Exported, Kind, Tensor

_SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
_CONVOLUTIONS = {"conv_dim": [128] * 7, "num_conv_pos_embeddings": 64}


def _entry(
    name: str, kind: Kind, architecture: str, inputs: dict[str, Tensor], **arguments: Any
) -> Entry:
    model, _, config = architecture.partition("/")
    source = Exported(
        "benchmarks.corpus.architectures.hub:transformer",
        inputs,
        {"model": model, "config": f"{config}Config", **arguments},
        "transformers",
    )
    return Entry(name, kind, source)


_WAVEFORM = {"input_values": Tensor((1, 16000))}

ENTRIES = (
    _entry("wav2vec2", "speech", "Wav2Vec2ForCTC/Wav2Vec2", _WAVEFORM, **_SMALL, **_CONVOLUTIONS),
    _entry("wavlm", "speech", "WavLMModel/WavLM", _WAVEFORM, **_SMALL, **_CONVOLUTIONS),
    _entry(
        "wav2vec2-conformer",
        "speech",
        "Wav2Vec2ConformerModel/Wav2Vec2Conformer",
        _WAVEFORM,
        **_SMALL,
        **_CONVOLUTIONS,
        position_embeddings_type="relative",
    ),
    _entry(
        "whisper",
        "speech",
        "WhisperForConditionalGeneration/Whisper",
        {"input_features": Tensor((1, 80, 600)), "decoder_input_ids": Tensor((1, 32), 8192)},
        d_model=256,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        vocab_size=8192,
        max_source_positions=300,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    _entry(
        "speech2text",
        "speech",
        "Speech2TextForConditionalGeneration/Speech2Text",
        {"input_features": Tensor((1, 200, 80)), "decoder_input_ids": Tensor((1, 32), 8192)},
        d_model=256,
        encoder_layers=3,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        vocab_size=8192,
    ),
    _entry(
        "audio-spectrogram-transformer",
        "audio",
        "ASTForAudioClassification/AST",
        {"input_values": Tensor((1, 256, 128))},
        max_length=256,
        **_SMALL,
    ),
    _entry(
        "hifigan",
        "speech",
        "SpeechT5HifiGan/SpeechT5HifiGan",
        {"spectrogram": Tensor((64, 80))},
        upsample_initial_channel=128,
    ),
    _entry(
        "patchtst",
        "time series",
        "PatchTSTForPrediction/PatchTST",
        {"past_values": Tensor((1, 512, 7))},
        num_input_channels=7,
        context_length=512,
        patch_length=16,
        patch_stride=8,
        prediction_length=96,
        d_model=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=256,
        scaling="std",
    ),
    _entry(
        "patchtsmixer",
        "time series",
        "PatchTSMixerForPrediction/PatchTSMixer",
        {"past_values": Tensor((1, 512, 7))},
        num_input_channels=7,
        context_length=512,
        patch_length=16,
        patch_stride=16,
        prediction_length=96,
        d_model=64,
        num_layers=3,
    ),
)
