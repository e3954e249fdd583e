"""Text encoders, decoders and language models of transformers, in small sizes."""

from typing import Any

from benchmarks.corpus.entries import Entry, Exported, Kind, Tensor

_N_TOKENS = 128
_N_WORDS = 8192
_SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": _N_WORDS,
}
_TOKENS = Tensor((1, _N_TOKENS), _N_WORDS)
_MASK = Tensor((1, _N_TOKENS), 2)


def _entry(
    name: str, kind: Kind, architecture: str, inputs: dict[str, Tensor], **arguments: Any
) -> Entry:
    """Return an entry; ``architecture`` is its class without the ending of the configuration."""
    model, _, config = architecture.partition("/")
    source = Exported(
        "benchmarks.corpus.architectures.hub:transformer",
        inputs,
        {"model": model, "config": f"{config}Config", **arguments},
        "transformers",
    )
    return Entry(name, kind, source)


def _encoder(name: str, architecture: str, **arguments: Any) -> Entry:
    inputs = {"input_ids": _TOKENS, "attention_mask": _MASK}
    return _entry(name, "text encoder", architecture, inputs, **{**_SMALL, **arguments})


def _language_model(name: str, architecture: str, **arguments: Any) -> Entry:
    return _entry(
        name, "language model", architecture, {"input_ids": _TOKENS}, **{**_SMALL, **arguments}
    )


_ENCODERS = (
    _encoder("bert", "BertModel/Bert"),
    _entry(
        "bert-base",
        "text encoder",
        "BertModel/Bert",
        {"input_ids": _TOKENS, "attention_mask": _MASK},
    ),
    _entry(
        "distilbert",
        "text encoder",
        "DistilBertForSequenceClassification/DistilBert",
        {"input_ids": _TOKENS, "attention_mask": _MASK},
        dim=256,
        n_layers=3,
        n_heads=4,
        hidden_dim=1024,
        vocab_size=_N_WORDS,
    ),
    _encoder("roberta", "RobertaForTokenClassification/Roberta", pad_token_id=1),
    _encoder("albert", "AlbertModel/Albert", embedding_size=128),
    _encoder(
        "deberta-v2",
        "DebertaV2Model/DebertaV2",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=64,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
    ),
    _encoder(
        "mobilebert",
        "MobileBertModel/MobileBert",
        intra_bottleneck_size=128,
        embedding_size=128,
        intermediate_size=512,
    ),
    _encoder(
        "modernbert",
        "ModernBertModel/ModernBert",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        attn_implementation="eager",
        reference_compile=False,
    ),
    _encoder("mpnet", "MPNetModel/MPNet"),
    _encoder("squeezebert", "SqueezeBertModel/SqueezeBert", embedding_size=256),
    _encoder("convbert", "ConvBertModel/ConvBert", embedding_size=128),
)
_LANGUAGE_MODELS = (
    _entry(
        "gpt2",
        "language model",
        "GPT2LMHeadModel/GPT2",
        {"input_ids": _TOKENS},
        n_embd=256,
        n_layer=4,
        n_head=4,
        vocab_size=_N_WORDS,
    ),
    _language_model("gpt-neox", "GPTNeoXForCausalLM/GPTNeoX"),
    _language_model("opt", "OPTForCausalLM/OPT", ffn_dim=1024, word_embed_proj_dim=256),
    _entry(
        "bloom",
        "language model",
        "BloomForCausalLM/Bloom",
        {"input_ids": _TOKENS},
        hidden_size=256,
        n_layer=4,
        n_head=4,
        vocab_size=_N_WORDS,
    ),
    _language_model("llama", "LlamaForCausalLM/Llama", num_key_value_heads=2),
    _language_model("qwen3", "Qwen3ForCausalLM/Qwen3", num_key_value_heads=2, head_dim=64),
    _language_model("gemma", "GemmaForCausalLM/Gemma", num_key_value_heads=1, head_dim=64),
    _language_model("phi", "PhiForCausalLM/Phi"),
    _language_model("falcon", "FalconForCausalLM/Falcon"),
)
_DECODERS = (
    _entry(
        "t5-encoder",
        "text encoder",
        "T5EncoderModel/T5",
        {"input_ids": _TOKENS, "attention_mask": _MASK},
        d_model=256,
        d_kv=64,
        d_ff=1024,
        num_layers=4,
        num_heads=4,
        vocab_size=_N_WORDS,
    ),
    _entry(
        "t5",
        "text decoder",
        "T5ForConditionalGeneration/T5",
        {"input_ids": _TOKENS, "decoder_input_ids": Tensor((1, 32), _N_WORDS)},
        d_model=256,
        d_kv=64,
        d_ff=1024,
        num_layers=3,
        num_heads=4,
        vocab_size=_N_WORDS,
    ),
    _entry(
        "bart",
        "text decoder",
        "BartForConditionalGeneration/Bart",
        {"input_ids": _TOKENS, "decoder_input_ids": Tensor((1, 32), _N_WORDS)},
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        vocab_size=_N_WORDS,
    ),
    _entry(
        "marian",
        "text decoder",
        "MarianMTModel/Marian",
        {"input_ids": _TOKENS, "decoder_input_ids": Tensor((1, 32), _N_WORDS)},
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        vocab_size=_N_WORDS,
        pad_token_id=0,
        decoder_start_token_id=0,
        eos_token_id=1,
    ),
    _entry(
        "trocr-decoder",
        "ocr",
        "TrOCRForCausalLM/TrOCR",
        {"input_ids": Tensor((1, 32), _N_WORDS)},
        d_model=256,
        decoder_layers=3,
        decoder_attention_heads=4,
        decoder_ffn_dim=1024,
        vocab_size=_N_WORDS,
    ),
)

ENTRIES = (*_ENCODERS, *_LANGUAGE_MODELS, *_DECODERS)
