"""Makes a tiny model of each architecture, with random weights: `make_models.py DIRECTORY BERT`,
with a Python that has transformers. BERT: a directory with the tokenizer of a BERT. Not imported.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

target, bert = Path(sys.argv[1]), Path(sys.argv[2])
torch.manual_seed(0)


def save(name: str, model: Any, **files: Any) -> Path:
    place = target / name
    model.to(torch.bfloat16).save_pretrained(place)
    for file, content in files.items():
        (place / file.replace("__", ".")).write_text(json.dumps(content))
    return place


def bert_config(**more: Any) -> Any:
    # Heads of 32: vLLM's attention on CPUs takes no smaller ones.
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return tf.BertConfig(**sizes, intermediate_size=128, vocab_size=30522, **more)


def with_bert_tokenizer(place: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copyfile(bert / file, place / file)


def byte_tokenizer(special: list[str]) -> Any:
    """Return a tokenizer of bytes, and of special tokens after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    return tokenizer


one = {0: "relevant"}
three = dict(enumerate(("bad", "fair", "good")))
with_bert_tokenizer(
    save("reranker", tf.BertForSequenceClassification(bert_config(id2label=one, num_labels=1)))
)
with_bert_tokenizer(
    save("classifier", tf.BertForSequenceClassification(bert_config(id2label=three, num_labels=3)))
)
with_bert_tokenizer(
    save("tagger", tf.BertForTokenClassification(bert_config(id2label=three, num_labels=3)))
)

TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}"
)

# A picture of 56 x 56 pixels is 16 patches, of which LLaVA takes each as a token.
words = byte_tokenizer(["<s>", "</s>", "<pad>", "<image>"])
fast = tf.PreTrainedTokenizerFast(
    tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
)
image = fast.convert_tokens_to_ids("<image>")
llava = tf.LlavaForConditionalGeneration(
    tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(
            hidden_size=128, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
            image_size=56, patch_size=14,
        ),
        text_config=tf.LlamaConfig(
            hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=320, max_position_embeddings=2048,
        ),
        image_token_index=image, image_seq_length=16,
    )
)  # fmt: skip
place = save("llava", llava)
# Checkpoints have a level more, which this Transformers leaves out and vLLM expects.
weights = {
    name.replace("vision_tower.", "vision_tower.vision_model."): tensor
    for name, tensor in load_file(place / "model.safetensors").items()
}
save_file(weights, place / "model.safetensors", {"format": "pt"})
pictures = {"height": 56, "width": 56}
tf.LlavaProcessor(
    image_processor=tf.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size=pictures),
    tokenizer=fast,
    patch_size=14,
    vision_feature_select_strategy="default",
    num_additional_image_tokens=1,
    chat_template=TEMPLATE,
).save_pretrained(place)

# A model that thinks, and the same with the heads of two kinds of rewards
thinks = byte_tokenizer(["<s>", "</s>", "<pad>", "<think>", "</think>", "<extra_0>", "no", "yes"])
decoder = tf.Qwen2Config(
    hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=320, max_position_embeddings=2048, pad_token_id=258,
)  # fmt: skip


def with_thinking_tokenizer(place: Path) -> None:
    tf.PreTrainedTokenizerFast(
        tokenizer_object=thinks,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
    ).save_pretrained(place)


with_thinking_tokenizer(save("thinker", tf.Qwen2ForCausalLM(decoder)))
sizes = {**decoder.to_dict(), "head_dim": 32, "model_type": "qwen3"}
with_thinking_tokenizer(save("yes-or-no", tf.Qwen3ForCausalLM(tf.Qwen3Config(**sizes))))
decoder.num_labels = 1
with_thinking_tokenizer(save("judge", tf.Qwen2ForSequenceClassification(decoder)))
# Rewards of each step: Transformers has no class for it, which the model's authors publish.
place = save("step-judge", tf.Qwen2ForCausalLM(decoder))
with_thinking_tokenizer(place)
config = json.loads((place / "config.json").read_text())
config["architectures"] = ["Qwen2ForProcessRewardModel"]
(place / "config.json").write_text(json.dumps(config))
weights = load_file(place / "model.safetensors")
for layer, width in ((0, 128), (2, 2)):
    weights[f"score.{layer}.weight"] = torch.randn(width, 128, dtype=torch.bfloat16)
    weights[f"score.{layer}.bias"] = torch.zeros(width, dtype=torch.bfloat16)
save_file(weights, place / "model.safetensors", {"format": "pt"})

languages = [f"<|{code}|>" for code in ("en", "zh", "de", "es", "ru", "ko", "fr", "ja")]
marks = ["<|endoftext|>", "<|startoftranscript|>", *languages, "<|translate|>", "<|transcribe|>",
         "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]  # fmt: skip
heard = byte_tokenizer([*marks, *(f"<|{step / 50:.2f}|>" for step in range(1501))])
ids = {mark: heard.token_to_id(mark) for mark in marks}
whisper = tf.WhisperForConditionalGeneration(
    tf.WhisperConfig(
        vocab_size=heard.get_vocab_size(), d_model=128, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, num_mel_bins=80, max_source_positions=1500, max_target_positions=448,
        bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"], decoder_start_token_id=ids["<|startoftranscript|>"],
    )
)  # fmt: skip
place = save("whisper", whisper)
heard.save(str(place / "tokenizer.json"))
settings = {
    "tokenizer_class": "WhisperTokenizer",
    "bos_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "model_max_length": 448,
    "processor_class": "WhisperProcessor",
}
(place / "tokenizer_config.json").write_text(json.dumps(settings))
vocabulary = {token: number for token, number in heard.get_vocab().items() if number < 256}
(place / "vocab.json").write_text(json.dumps(vocabulary))
(place / "merges.txt").write_text("#version: 0.2\n")
tf.WhisperFeatureExtractor(feature_size=80).save_pretrained(place)
# Adapters for the lab's `tiny`, of ranks that fit and do not fit
for name, rank in (("lora", 8), ("lora-of-a-large-rank", 64)):
    place, tensors = target / name, {}
    place.mkdir()
    for layer in range(4):
        part = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{part}.lora_A.weight"] = torch.randn(rank, 128)
        tensors[f"{part}.lora_B.weight"] = torch.randn(128, rank)
    save_file(tensors, place / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4 * rank, "target_modules": ["q_proj"]}
    more = {"bias": "none", "base_model_name_or_path": "tiny", "task_type": "CAUSAL_LM"}
    (place / "adapter_config.json").write_text(json.dumps({**config, **more}))
print("made", *sorted(each.name for each in target.iterdir()))
