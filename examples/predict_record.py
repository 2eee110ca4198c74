"""Predict the record machine from Python, and compare the step with the measured one."""

import meshwright as mw

MEASURED_STEP_S = 1.2704  # median log of MLPerf Training v6.0, Azure, 8,192 GB200

job = mw.Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
forecast = job.forecast("tp=4,cp=2,pp=8,vp=8,mbs=1")

low_s, high_s = forecast.interval
inside = low_s < MEASURED_STEP_S < high_s
largest = max(forecast.parts, key=forecast.share)

print(f"step time      {forecast.step_s:.1f} s; the measured {MEASURED_STEP_S} s lies {'in' if inside else 'out'}side its interval")
print(f"time to train  {forecast.time_to_train.value / 60:.0f} min, {forecast.outcome.num_steps} steps")
print(f"largest part   {largest}")
print(f"dp crosses     {', '.join(forecast.placement['dp'])}")
