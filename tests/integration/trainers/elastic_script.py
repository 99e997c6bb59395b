"""A script that regroups in place, in its own words: gloo by hand, the channel by hand, nothing of `remora.torch`.

Its result is known: after step s every element of the state is 1 + 2 + ... + s, whichever workers took part.  It trains
until a file named by its first argument is there.
"""

ELASTIC = """
import json, os, pathlib, socket, sys, threading, time
from datetime import timedelta

import torch
import torch.distributed as dist
from remora.script import channel

FINISH, PAUSE = pathlib.Path(sys.argv[1]), float(sys.argv[2])
wire = socket.socket(fileno=int(os.environ[channel.FD_VARIABLE]))
news = threading.Condition()
orders = {"hold": None, "target": None, "regroup": None, "part": -1, "taken": {}}
boundary = 0

def say(**message):
    wire.sendall(channel.encode(message))

def listen():
    decoder = channel.Decoder()
    while received := wire.recv(65536):
        for message in decoder.feed(received):
            with news:
                match message["type"]:
                    case "hold":
                        orders["hold"] = message["token"]
                        say(type="held", token=message["token"], boundary=boundary)
                    case "decide":
                        orders["hold"], orders["target"] = None, (message["boundary"], message["action"])
                    case "release":
                        orders["hold"], orders["taken"] = None, dict.fromkeys(orders["taken"], False)
                    case "taken":
                        orders["taken"][message["step"]] = message["park"]
                    case "part":
                        orders["part"] = message["generation"]
                    case "regroup":
                        orders["hold"], orders["target"], orders["regroup"] = None, None, message
                news.notify_all()
    os._exit(9)

def agreed():
    '''What was decided for this boundary.'''
    global boundary
    with news:
        boundary = step
        while True:
            if orders["target"] is not None and boundary >= orders["target"][0]:
                action, orders["target"] = orders["target"][1], None
                return action
            if orders["hold"] is None or orders["part"] >= generation:
                return None
            news.wait()

class PeerLost(Exception):
    pass

def wait(work):
    try:
        while not work.is_completed():
            if orders["part"] >= generation:
                raise PeerLost("asked to part")
            time.sleep(0.0005)
        work.wait()
    except RuntimeError as error:
        raise PeerLost(str(error).splitlines()[0]) from error

def meet(rank, size, address, port):
    '''Form a group in the background, so that a peer that dies meanwhile does not hold this process.'''
    outcome = []

    def connect():
        try:
            store = dist.TCPStore(address, port, size, rank == 0, timedelta(seconds=60))
            outcome.append((dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60)), store))
        except RuntimeError as error:
            outcome.append(PeerLost(str(error).splitlines()[0]))

    threading.Thread(target=connect, daemon=True).start()
    while not outcome:
        if orders["part"] >= generation:
            raise PeerLost("asked to part")
        time.sleep(0.001)
    if isinstance(outcome[0], PeerLost):
        raise outcome[0]
    return outcome[0]

abandoned = []

def regroup(why):
    '''Park, and go on in the next group with the newest state that anybody in it has.'''
    global group, store, rank, size, generation, step
    while True:
        abandoned.append((group, store))
        say(type="parted", generation=generation, step=step, why=why)
        with news:
            news.wait_for(lambda: orders["regroup"] is not None and orders["regroup"]["generation"] > generation)
            place = orders["regroup"]
        generation, rank, size = place["generation"], place["rank"], place["world_size"]
        try:
            group, store = meet(rank, size, place["master_addr"], place["master_port"])
            steps = torch.zeros(size, dtype=torch.long)
            wait(group._allgather_base(steps, torch.tensor([step])))
            newest = int(steps.argmax())
            wait(group.broadcast(state, newest))
        except PeerLost as lost:
            why = str(lost)
            continue
        step = int(steps.max())
        say(type="joined", generation=generation, step=step)
        print(f"rank {rank} of {size} goes on after step {step}", flush=True)
        if rank == 0 and step > 0:
            # The worker that should have sent it may be gone.
            report()
        return

def report():
    say(type="report", step=step, metrics={"total": float(state[0])}, total_steps=None)

def checkpoint():
    folder = pathlib.Path(os.environ["REMORA_SCRATCH_DIR"], f"step-{step}")
    folder.mkdir()
    if rank == 0:
        (folder / "state.json").write_text(json.dumps({"step": step, "total": float(state[0])}))
    say(type="checkpoint", step=step, folder=str(folder), asked=True)
    with news:
        # Where the end of this process was decided, a step done here would have to be done again.
        news.wait_for(lambda: orders["taken"].get(step) is False or orders["part"] >= generation)

generation, rank, size = (int(os.environ[name]) for name in ("REMORA_GENERATION", "RANK", "WORLD_SIZE"))
state, step, group, store = torch.zeros(1000, dtype=torch.double), 0, None, None
if "REMORA_RESUME_DIR" in os.environ:
    saved = json.loads(pathlib.Path(os.environ["REMORA_RESUME_DIR"], "state.json").read_text())
    state, step = state + saved["total"], saved["step"]
threading.Thread(target=listen, daemon=True).start()
say(type="hello", version=channel.VERSION, pid=os.getpid())
say(type="elastic")
if os.environ.get("REMORA_JOIN"):
    step = -1
    regroup("joining")
else:
    try:
        group, store = meet(rank, size, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    except PeerLost as lost:
        regroup(str(lost))

while True:
    # The last element says whether a worker wants to finish.
    share = torch.full((1001,), (step + 1) / size, dtype=torch.double)
    share[-1] = FINISH.exists()
    time.sleep(PAUSE)
    try:
        wait(group.allreduce([share]))
    except PeerLost as lost:
        regroup(str(lost))
        continue
    state, step = state + share[:-1], step + 1
    report()
    action = agreed()
    if share[-1] > 0:
        break
    if action == "regroup":
        regroup("planned")
    elif action == "checkpoint":
        checkpoint()
try:
    wait(group.barrier())
except PeerLost:
    pass
print(f"rank {rank} ends with {float(state[0]):.0f} after step {step}", flush=True)
wire.shutdown(socket.SHUT_WR)
os._exit(0)
"""
