"""The backend's name in accelerate's list of backends, which is closed, and with it in the Trainer's."""


def register_with_accelerate() -> None:
    """Let accelerate name this backend: ``TorchDynamoPlugin(backend="dtr", options={...})``.

    So can what builds on it: ``transformers.TrainingArguments(torch_compile_backend="dtr")``, which has no
    place for options; there ``dtr_fx.config`` or the environment says the budget.
    """
    from accelerate.utils import DynamoBackend

    if "DTR" in DynamoBackend:
        return
    member = str.__new__(DynamoBackend, "DTR")
    member._name_ = member._value_ = "DTR"
    DynamoBackend._missing_ = classmethod(lambda _, value: member if value == "DTR" else None)
