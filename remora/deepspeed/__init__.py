"""What makes an unmodified script that calls `deepspeed.initialize` elastic: nothing here is for scripts to call.

The DeepSpeed backend (`trainers/backends/deepspeed.py`) puts the folder `site` on the path of the script's interpreter.
As soon as the script imports `deepspeed`, `hook` wraps `deepspeed.initialize`: the configuration gets the numbers that
the job decides (`configuration`), and the engine takes part in Remora's checkpoints (`engine`).

Sources: https://www.deepspeed.ai/docs/config-json/, https://www.deepspeed.ai/tutorials/universal-checkpointing/.
"""
