"""Computes vectors as sentence-transformers does (mean of the tokens, of length 1), with a Python
that has transformers: `reference.py MODEL`, texts as JSON on stdin. Not imported."""

from __future__ import annotations

import json
import sys

import torch
import transformers

texts = json.load(sys.stdin)
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModel.from_pretrained(sys.argv[1], dtype=torch.float32)
batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
with torch.no_grad():
    states = model(**batch).last_hidden_state
mask = batch["attention_mask"].unsqueeze(-1)
vectors = (states * mask).sum(1) / mask.sum(1)
print(json.dumps(torch.nn.functional.normalize(vectors).tolist()))
