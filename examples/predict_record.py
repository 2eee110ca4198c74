"""Predict the record machine from Python, and hold it against what was measured."""

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.layout import Layouts, parse_layout
from meshwright.predict.outcome import outcome
from meshwright.predict.placement import tiers_of
from meshwright.predict.prediction import check, predict
from meshwright.units import MINUTE

MEASURED_STEP_S = 1.2704  # median log of MLPerf Training v6.0, Azure, 8,192 GB200

model, cluster, workload = load_model("llama-3.1-405b"), load_cluster("azure-gb200-128"), load_workload("mlperf-llama31-405b")
layout = parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1")
check(model, cluster, workload, layout)

prediction = predict(model, cluster, workload, Layouts.of([layout]))
run = outcome(prediction, cluster, workload)
inside = prediction.low_s[0] < MEASURED_STEP_S < prediction.high_s[0]
largest = max(prediction.parts, key=lambda part: prediction.parts[part][0])

print(
    f"step time      {prediction.step_time_s[0]:.1f} s; the measured {MEASURED_STEP_S} s lies {'in' if inside else 'out'}side its interval"
)
print(f"time to train  {run.time_to_train_s.value / MINUTE:.0f} min, {run.num_steps} steps")
print(f"largest part   {largest}")
print(f"dp crosses     {', '.join(tiers_of(layout, cluster)['dp'])}")
