// How busy the processors and GPUs of workers and nodes are.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { get, useRead } from "./api.js";
import { Card, Problem, Table } from "./parts.js";
import { isKnown, percent } from "./words.js";

const WIDTH = 80, HEIGHT = 18;

/** `name` over time, of points `{at, cpu, gpu}`, with `most` at the upper edge. */
function Line({ points, name, most }) {
  const known = points.filter((one) => isKnown(one[name])), from = known[0].at, span = Math.max(1, known.at(-1).at - from);
  const places = known.map((one) => `${(WIDTH * (one.at - from)) / span},${HEIGHT - 1 - (HEIGHT - 2) * (one[name] / most)}`);
  return html`<svg class="load" width=${WIDTH} height=${HEIGHT} role="img" aria-label="${name.toUpperCase()} over ten minutes"><polyline points=${places.join(" ")} /></svg>`;
}

/** Processors in use, of what `load` of the API says of a worker or a node. */
export const Cpu = ({ load }) => html`${load.points.at(-1).cpu.toFixed(2)} CPU <${Line} points=${load.points} name="cpu" most=${Math.max(1, ...load.points.map((one) => one.cpu))} />`;

/** The part of the time in which its GPUs computed, and nothing where that is not known. */
export const Gpu = ({ load }) => (isKnown(load.points.at(-1).gpu) ? html`${percent(load.points.at(-1).gpu, 1)} of ${load.gpus} GPU <${Line} points=${load.points} name="gpu" most=${1} />` : null);

export function WorkerLoads({ id }) {
  const found = useRead(`loads ${id}`, () => get(`/v1/jobs/${id}/loads`), 10), items = found.value?.items ?? [];
  if (!items.length) return html`<${Problem} error=${found.error} />`;
  return html`<${Card} title="Processors and GPUs" note="in use by each worker, in the last ten minutes" error=${found.error}>
    <${Table} label="load of the workers" heads="#rank|node|processors|GPUs" rows=${items.map((load) => [load.rank, load.address, html`<${Cpu} load=${load} />`, html`<${Gpu} load=${load} />`])} />
    ${found.value.next_cursor && html`<p class="muted">The first ${items.length} workers.</p>`}<//>`;
}
