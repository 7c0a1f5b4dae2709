"""Language models: from the files that people have to text and a server.

The path of a request: `checkpoint.py` reads a GGUF file or a Hugging Face folder, `config.py` what kind of
transformer it is, `model.py` computes the scores of the next token with `cache.py` as its memory.
"""
