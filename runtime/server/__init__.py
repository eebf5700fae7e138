"""The engine over HTTP: SGLang's wire, OpenAI's, and our own extensions. Knows no core."""
