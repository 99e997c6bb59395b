// Plots of metrics by step or time, of one job or several; uPlot draws them.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, useRead } from "./api.js";
import { Problem } from "./parts.js";

const COLOURS = ["#2b9a5f", "#6941c6", "#d9822b", "#2f7fd0", "#b42318", "#0f766e", "#8d96a5"];
const POINTS = 600;

/** Every metric of the jobs `[{id, name}]`; those of `others` are laid over the first one's. */
export function Metrics({ job, others, isLive }) {
  const jobs = [job, ...others];
  const key = jobs.map((one) => one.id).join(",");
  const found = useRead(key, () => Promise.all(jobs.map((one) => get(`/v1/jobs/${one.id}/metrics?points=${POINTS}`))), isLive ? 3 : 0);
  const [smoothing, setSmoothing] = useState(0);
  const [isLog, setLog] = useState(false);
  const [byTime, setByTime] = useState(false);
  const points = useMemo(() => (found.value ?? []).map((page) => page.items), [found.value]);
  const names = [...new Set(points.flatMap((items) => items.flatMap((point) => Object.keys(point.values))))].sort();
  return html`<div class="card"><div class="title"><h2>Metrics</h2>${names.length > 0 && html`<div class="end filters">
      <label>smoothing<input type="range" min="0" max="0.98" step="0.02" value=${smoothing} onInput=${(event) => setSmoothing(Number(event.target.value))} /></label>
      <label>axis<select value=${byTime ? "time" : "step"} onChange=${(event) => setByTime(event.target.value === "time")}><option value="step">step</option><option value="time">time</option></select></label>
      <label>values<select value=${isLog ? "log" : "linear"} onChange=${(event) => setLog(event.target.value === "log")}><option value="linear">linear</option><option value="log">logarithmic</option></select></label>
    </div>`}</div>
    <${Problem} error=${found.error} />
    ${found.value && !names.length && html`<p class="muted">The job has reported no metric yet. <code>remora.training.report</code> does it.</p>`}
    <div class="plots">${names.map((name) => html`<${Plot} key=${name} name=${name} jobs=${jobs} points=${points} smoothing=${smoothing} isLog=${isLog} byTime=${byTime} />`)}</div></div>`;
}

/** Columns for uPlot: the places of all runs, and for each run its values there (null: none). */
export function columns(points, name, smoothing, byTime) {
  const runs = points.map((items) => {
    const begin = items[0]?.at ?? 0;
    let mean = null;
    return new Map(items.filter((point) => Number.isFinite(point.values[name])).map((point) => {
      const value = point.values[name];
      mean = mean === null ? value : smoothing * mean + (1 - smoothing) * value;
      return [byTime ? point.at - begin : point.step, mean];
    }));
  });
  const places = [...new Set(runs.flatMap((run) => [...run.keys()]))].sort((one, other) => one - other);
  return [places, ...runs.map((run) => places.map((place) => run.get(place) ?? null))];
}

function Plot({ name, jobs, points, smoothing, isLog, byTime }) {
  const box = useRef(null), plot = useRef(null);
  const data = useMemo(() => columns(points, name, smoothing, byTime), [points, name, smoothing, byTime]);
  const isPositive = data.slice(1).every((values) => values.every((value) => value === null || value > 0));
  const shape = [name, jobs.map((job) => job.id).join(), isLog && isPositive, byTime].join();
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const axis = { stroke: style.getPropertyValue("--muted"), grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
    plot.current = new uPlot({
      width: box.current.clientWidth || 400, height: 220, title: name,
      scales: { x: { time: false }, y: { distr: isLog && isPositive ? 3 : 1 } },
      axes: [{ ...axis, label: byTime ? "seconds" : "step", labelSize: 18 }, axis],
      series: [{ label: byTime ? "seconds" : "step" }, ...jobs.map((job, index) => ({ label: job.name, stroke: COLOURS[index % COLOURS.length], width: 1.5, spanGaps: true }))],
    }, data, box.current);
    const observer = new ResizeObserver(([entry]) => plot.current?.setSize({ width: entry.contentRect.width, height: 220 }));
    observer.observe(box.current);
    return () => { observer.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { plot.current?.setData(data); }, [data]);
  return html`<div ref=${box} class="plot" role="img" aria-label=${`${name} by ${byTime ? "time" : "step"}`}></div>`;
}
