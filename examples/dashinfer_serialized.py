"""Write a model in 8 bits, and run what was written: python examples/dashinfer_serialized.py MODEL [ADDRESS]."""

import sys
import tempfile

from headrace import allspark
from headrace.allspark.engine import TargetDevice

path, address = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None

with tempfile.TemporaryDirectory() as folder, allspark.Engine(address) as engine:
    source = allspark.HuggingFaceModel(path, "owner/model").load_model()
    source.serialize_to_path(engine, folder, enable_quant=True, weight_only_quant=True, skip_if_exists=True)

    model = allspark.DashInferModel(folder, "owner/model", engine=engine).load_model()
    builder = model.create_reference_runtime_config_builder("serialized", TargetDevice.CPU, [0], max_batch=4)
    config = builder.max_length(256).build()
    engine.install_model(config)
    engine.start_model("serialized")

    settings = model.create_reference_generation_config_builder(config).update({"top_k": 1, "max_length": 48})
    status, handle, queue = engine.start_request_text("serialized", model, "Once upon a time", settings)
    engine.sync_request("serialized", handle)
    print(status, model.get_tokenizer().decode(queue.Get().ids_from_generate))

    engine.release_request("serialized", handle)
    engine.stop_model("serialized")
    engine.release_model("serialized")
