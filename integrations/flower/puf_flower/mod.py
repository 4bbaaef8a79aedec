"""The client mod: negates and scales the update of a node that is being forgotten, and measures models on its data.

    app = ClientApp(mods=[PufMod()])

The app's training does not change. In an unlearning round the target returns w + s * (w_local - w) for parameters and the
buffers that it received. The scale s is in the target's own message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from puf_client.routines.dosing import DoseOptions
from puf_client.routines.per_sample import PerSample
from puf_embedded.arithmetic import Arrays, scaled
from puf_embedded.measuring import DOSE as DOSE_JSON
from puf_embedded.measuring import MEASUREMENT, SUMS, TABLE, NodeData, chosen_dose, measured, summed
from puf_flower.wire import DOSE, EVALUATE, MEASURE, RECORD, arrays_of, only_arrays, record_of, taken

# Values of a model on the node's samples: `part` is "train" or "holdout". None if there are no such samples.
Measure = Callable[[Arrays, Context, str], PerSample | None]
# Whether this node asks to be forgotten, given its context and the number of the round.
Asks = Callable[[Context, int], bool]

FORGET_ME = "puf-forget"


def asks_in_node_config(context: Context, server_round: int) -> bool:
    """Whether the node was started with `--node-config "puf-forget=true"`, or with a number and that round is reached."""
    since = context.node_config.get(FORGET_ME, False)
    return bool(since) and server_round >= int(since)


class PufMod:
    """A mod for `ClientApp(mods=[...])`. With `measure`, strength can adapt and receipts contain the node's own figures."""

    def __init__(self, measure: Measure | None = None, asks: Asks = asks_in_node_config) -> None:
        self._measure, self._asks = measure, asks

    def __call__(self, msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        told = taken(msg.content)
        task = str(told.get("task", ""))
        if task in (EVALUATE, MEASURE):
            return _answer(msg, self._measurement(task, told, msg, context))
        if task:
            return self._negated(told, msg, context, call_next)
        round_number = next((c["server-round"] for c in msg.content.config_records.values() if "server-round" in c), 0)
        reply = call_next(msg, context)
        if not reply.has_error():
            said = {"mod": True, "measures": self._measure is not None}
            if reply.content.array_records and self._asks(context, int(round_number)):
                said["forget"] = True
            reply.content[RECORD] = ConfigRecord(said)
        return reply

    def _negated(self, told: ConfigRecord, msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        key = only_arrays(msg.content)
        base = arrays_of(msg.content[key])
        buffers = frozenset(told["buffers"])
        answers: list[Message] = []

        def train() -> Arrays:
            """Runs the app's training once for each epoch, every time from the result of the last one."""
            for _ in range(int(told["epochs"])):
                answers.append(call_next(msg, context))
                if answers[-1].has_error():
                    return base
                result = answers[-1].content[only_arrays(answers[-1].content)]
                msg.content[key] = result
            return arrays_of(result)

        scale, said = float(told["scale"]), {}
        if told["task"] == DOSE:
            trained, report = self._dose(told, base, train, context, buffers)
            scale *= report.kappa
            said = {"dose": DOSE_JSON.dump_json(report)}
            if not answers:
                # A skipped dose: the app only states its sample count, and the model stays as it is.
                answers.append(call_next(msg, context))
        else:
            trained = train()
        reply = answers[-1]
        if reply.has_error():
            return reply
        reply.content[only_arrays(reply.content)] = record_of(scaled(base, trained, scale, buffers))
        reply.content[RECORD] = ConfigRecord(
            {"mod": True, "measures": self._measure is not None, "scale": scale, **said}
        )
        return reply

    def _dose(
        self, told: ConfigRecord, base: Arrays, train: Callable[[], Arrays], context: Context, buffers: frozenset[str]
    ) -> Any:
        given: dict[str, Any] = {str(k)[4:]: v for k, v in told.items() if str(k).startswith("opt-")}
        options = DoseOptions(**given)
        return chosen_dose(base, train, self._data(context), options, TABLE.validate_json(told["unseen"]), buffers)

    def _data(self, context: Context) -> NodeData:
        hook = self._measure
        assert hook is not None, "only nodes that can measure are asked to"

        def train(arrays: Arrays) -> PerSample:
            found = hook(arrays, context, "train")
            if found is None:
                raise ValueError('measure(arrays, context, "train") must return the values of the training samples')
            return found

        return NodeData(train=train, holdout=lambda arrays: hook(arrays, context, "holdout"))

    def _measurement(self, task: str, told: ConfigRecord, msg: Message, context: Context) -> dict[str, bytes]:
        if self._measure is None:
            return {}
        arrays, data = arrays_of(msg.content[only_arrays(msg.content)]), self._data(context)
        holdout = data.holdout(arrays)
        if task == EVALUATE:
            return {"sums": SUMS.dump_json(summed(holdout, by_class=True))} if holdout else {}
        others = TABLE.validate_json(told["unseen"]) if told["unseen"] else None
        return {"measurement": MEASUREMENT.dump_json(measured(data.train(arrays), holdout, others))}


def _answer(msg: Message, said: dict[str, bytes]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"mod": True, **said})}), reply_to=msg)
