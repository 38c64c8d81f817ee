"""Model weights: from a directory, a host or a hub to every host.

Read `delivery` first: it runs a push or a pull from start to finish. `receiver` is the hosts' side.

- Where a model comes from: `model_sources` (the argument of `model push`), `directory` (of this
  machine), `hub` with `huggingface` and `modelscope`, `hub_source` (the files, for this
  machine or a host), `host_transport` (a host asks).
- Models on hosts: `on_host` (present ones), `staging` (missing files, and moving them into place).
- Hashes: `manifest` (a model's files), `hashing` and its program `host_hash`, `comparison` (of the
  hosts of a service).
"""
