"""What a model remembers of a request: pages, and the codecs they are written in."""

# name -> "module:Class"
KV_CODECS = {"bf16": "narrows.kv.bf16:BF16"}
