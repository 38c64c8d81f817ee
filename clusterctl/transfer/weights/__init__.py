"""Model weights: from a directory, a host or a hub to every host.

Read `delivery` first, which is all of a push or pull; `receiver` says how hosts take a model in.

- Where a model comes from: `model_sources` (what `model push` names), `directory` (of this
  machine), `hub` with `huggingface` and `modelscope`, `downloads` (from a hub to this machine),
  `host_download` and its program `host_fetch` (from a hub to a host).
- What hosts hold: `on_host` (their models), `staging` (what they lack; how it gets into its place).
- Which bytes are right: `manifest` (a model's files), `hashing` and its program `host_hash`,
  `comparison` (of the hosts of a service).
"""
