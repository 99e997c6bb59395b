// The view of a profile: which operators took how long, and what each thread and each stream of a GPU did when.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { ApiError, getRead, useRead } from "./api.js";
import { Card, Problem, Table } from "./parts.js";
import { addressOf } from "./addresses.js";
import { drawn, traceOf } from "./trace.js";
import { useZoom } from "./zoom.js";
import { COUNT, counted, microseconds, percent } from "./words.js";

/** Characters of a trace that a browser is asked to hold. */
const MOST_CHARACTERS = 256 * 2 ** 20;
/** What is shown of it. */
const MOST_OPERATORS = 50, MOST_TRACKS = 40, MOST_DEPTH = 24;
const ROW = 15, NAME = 18;

export function ProfileView({ id, number }) {
  const path = `/v1/jobs/${id}/profiles/${encodeURIComponent(number)}/content`, found = useRead(path, () => readTrace(path), 0), trace = found.value;
  return html`<div class="title"><h1>Profile ${number}</h1><small>of <a href=${addressOf(`jobs/${id}`)}>${id}</a></small><div class="end"><a href=${path} download>download</a></div></div>
    <${Problem} error=${found.error} />${!trace && !found.error && html`<p class="muted">Reading the trace …</p>`}
    ${trace && html`<${Tracks} trace=${trace} /><${Operators} all=${trace.operators} />`}`;
}

async function readTrace(path) {
  // What is no archive is no trace either.
  const text = await unzipped(await getRead(path, (answer) => answer.blob())).catch(() => "");
  if (text === null) throw new ApiError(413, "", "The trace is too large for the page.", "Download it: Perfetto opens it.");
  let trace = null;
  try { trace = traceOf(JSON.parse(text).traceEvents); } catch { /* Said below. */ }
  if (!trace) throw new ApiError(422, "", "The page finds no operator in the trace.", "Download it: Perfetto may open it.");
  return trace;
}

/** The text of a compressed file; null: it is too long. */
async function unzipped(file) {
  const reader = file.stream().pipeThrough(new DecompressionStream("gzip")).pipeThrough(new TextDecoderStream()).getReader(), parts = [];
  for (let size = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return parts.join("");
    size += value.length;
    if (size > MOST_CHARACTERS) { reader.cancel(); return null; }
    parts.push(value);
  }
}

function Operators({ all }) {
  const sum = all.reduce((total, one) => total + one.self, 0), shown = all.slice(0, MOST_OPERATORS);
  return html`<${Card} title="Operators" note="by the time that each took itself, without what it calls">
    <${Table} label="operators" heads="~operator|on|#calls|#itself|#of all|#with what it calls"
      rows=${shown.map((one) => [one.name, one.isGpu ? "GPU" : "CPU", COUNT.format(one.calls), microseconds(one.self), percent(one.self, sum), microseconds(one.total)])} />
    ${shown.length < all.length && html`<p class="muted">The first ${shown.length} of ${counted(all.length, "operator")}.</p>`}<//>`;
}

function Tracks({ trace }) {
  const canvas = useRef(null), zoom = useZoom(trace, 0, 0), { from, to, width } = zoom;
  const [said, setSaid] = useState("");
  const tracks = useMemo(() => placed(trace.tracks), [trace]), height = tracks.at(-1).bottom;
  useEffect(() => draw(canvas.current, tracks, zoom, height), [tracks, from, to, width]);
  const point = (event) => {
    zoom.on.onMouseMove(event);
    const y = event.clientY - canvas.current.getBoundingClientRect().top, at = zoom.timeAt(event.clientX);
    const track = tracks.find((one) => y < one.bottom), depth = Math.floor((y - (track?.top ?? 0)) / ROW);
    const span = track?.spans.find((one) => one.depth === depth && one.from <= at && at <= one.to);
    setSaid(span ? `${span.name}: ${microseconds(span.to - span.from)}, from ${microseconds(span.from - trace.from)} on` : "");
  };
  const part = zoom.drag && [zoom.x(Math.min(zoom.drag.from, zoom.drag.to)), zoom.x(Math.max(zoom.drag.from, zoom.drag.to))];
  return html`<div class="card"><div class="title"><h2>Threads and streams</h2><small>${microseconds(to - from)} are shown</small><div class="end">${zoom.buttons}</div></div>
    <div ref=${zoom.box} class="tracks" tabindex="0" role="group" aria-label="threads and streams; plus and minus zoom, 0 shows all" ...${zoom.keys}>
      <canvas ref=${canvas} role="img" aria-label="what ${counted(tracks.length, "thread")} and streams did; the table of operators says it as text" ...${zoom.on} onMouseMove=${point}></canvas>
      ${part && html`<i style=${{ left: `${part[0]}px`, width: `${part[1] - part[0]}px` }}></i>`}</div>
    <p class="muted">${said || "Point at an operator to read its time; drag over a time to enlarge it."}</p>
    ${tracks.length < trace.tracks.length && html`<p class="muted">The ${tracks.length} busiest of ${trace.tracks.length}.</p>`}</div>`;
}

/** The busiest tracks with the place of each in the picture. */
function placed(tracks) {
  let bottom = 0;
  return tracks.slice(0, MOST_TRACKS).map((track) => {
    const top = bottom + NAME;
    bottom = top + ROW * Math.min(MOST_DEPTH, track.depth) + 4;
    return { ...track, top, bottom };
  });
}

function draw(canvas, tracks, { from, to, width, x }, height) {
  const sharpness = devicePixelRatio, ink = getComputedStyle(canvas).color;
  Object.assign(canvas, { width: width * sharpness, height: height * sharpness });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const pen = canvas.getContext("2d");
  pen.scale(sharpness, sharpness);
  pen.font = "11px Inter, system-ui, sans-serif";
  for (const track of tracks) {
    pen.fillStyle = ink;
    pen.fillText(track.name, 0, track.top - 5);
    for (const span of drawn(track.spans, from, to, (to - from) / width)) {
      if (span.depth >= MOST_DEPTH) continue;
      const left = x(span.from), wide = Math.max(1, x(span.to) - left), y = track.top + span.depth * ROW;
      pen.fillStyle = colour(span.name);
      pen.fillRect(left, y, wide, ROW - 1);
      if (wide < 30) continue;
      pen.fillStyle = "#12161c";
      pen.fillText(span.name.slice(0, Math.floor(wide / 6)), left + 3, y + 11, wide - 4);
    }
  }
}

/** The same for each operator of one name, and light behind dark letters. */
const colour = (name) => `hsl(${[...name].reduce((sum, letter) => (31 * sum + letter.charCodeAt(0)) % 360, 7)} 60% 72%)`;
