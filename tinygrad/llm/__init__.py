"""Language models: from the files that people have to text and a server.

The path of a request: `checkpoint.py` reads a GGUF file or a Hugging Face folder, `config.py` what kind of
transformer it is, `model.py` computes the scores of the next token with `cache.py` as its memory.
`tokenizer.py` and `templates.py` make tokens of text and conversations, `sampling.py` chooses a token, and
`generate.py` does that again and again for many requests at once, by the masks of `grammar.py` where an
answer is to be JSON of a schema or a text of a grammar: `gbnf.py` reads one, `recogniser.py` says which bytes
may come next, `vocabulary.py` which tokens. `language_model.py` has all of it in one object;
`python -m tinygrad.llm` is the command.
"""
