"""What things cost, measured: one file per question, results committed with the machine they came from.

| question | files |
|---|---|
| How much faster are steps? | speed, speed_counted, speed_guard, compiled; read by speed_results, speed_report |
| How near are merged images? | candidates, caches, fidelity; read by fidelity_results, fidelity_report |
| What is nearest at equal FLOPs? | step_candidates, fidelity; read by front, front_report, pareto |
| How near are forecasts? | forecasts, forecast_rules, stochastic; read by forecast_fronts |
| What do shapes alone say? | flops, newer, predictions, models |
| What do parts of the core cost? | planning, merging, choices, pseudo_inverse |
| Do the paper's claims reproduce? | paper |
| What do kernels occupy and gain? | kernels, ahead_of_time |

Shared are machine and rows. fidelity_images makes an image for the docs, magnitudes the constants of a cache.
"""
