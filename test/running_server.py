"""A server of a language model in a thread, for tests that are its clients."""
import threading
import time

import openai
import uvicorn

from tinygrad.llm.language_model import LanguageModel
from tinygrad.llm.server import RequestLimits, Server

KEY = "a key"


class Running:
    """A server in a thread, on a port of its own."""

    def __init__(self, path, slots=4, **limits):
        self.server = Server(LanguageModel(path, slots=slots, dtype="float32"), RequestLimits(**limits))
        self.uvicorn = uvicorn.Server(uvicorn.Config(self.server.app, port=0, log_level="warning"))
        self.thread = threading.Thread(target=self.uvicorn.run)
        self.thread.start()
        while not self.uvicorn.started:
            time.sleep(0.01)
        self.host, port = self.uvicorn.servers[0].sockets[0].getsockname()
        self.url = f"http://127.0.0.1:{port}"

    def client(self, key=KEY):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120)

    def stop(self):
        self.uvicorn.should_exit = True
        self.thread.join()
