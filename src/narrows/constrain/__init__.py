"""Answers that keep to a form: a JSON schema, a regular expression, a grammar, or a choice of texts.

- `SamplingParams(structured_outputs={"json": schema})`, or `"regex"`, `"grammar"` (Lark, as llguidance reads it),
  `"choice"`: everything below `Engine.add` follows. Form and size are checked when the parameters are made, the grammar
  itself when the request is added. Both raise ParamError, whose `field` is `structured_outputs` or
  `structured_outputs.json`, `.regex`, ...
- A grammar seen for the first time takes up to two seconds. `engine.grammars.matcher(structured_outputs)` in another
  thread, its result thrown away, raises what adding the request would raise, and leaves the grammar compiled.
- `response_format(value)`: OpenAI's `response_format` as `structured_outputs`.
- `engine.grammars.prepare()` reads the vocabulary at start, so that the first constrained request need not wait for it.
- An answer ends with "stop" once nothing may follow, without an end token. One whose grammar turns out too much work
  on the way ends with "abort".
"""

from .response_format import response_format

__all__ = ["response_format"]
