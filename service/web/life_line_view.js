// The life line as a picture.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { Table, WorkersArea } from "./parts.js";
import { PHASES } from "./life_line.js";
import { useZoom } from "./zoom.js";
import { clock, counted, duration, lossText, moment, money, offering, phrase, shortId } from "./words.js";

const LEFT = 170, RIGHT = 30, TOP = 58, LANE = 26, HEIGHT = 20, WORKERS = 46;
/** Where the texts of marks stand. */
const ROWS = [12, 26, 40];
const SIGNS = { loss: "✕", change: "▲", notice: "◆" };
/** Lanes and losses that are shown, the newest. */
const MOST_LANES = 64, MOST_LOSSES = 20;

export function LifeLine({ line, job, nodes, losses, isCut }) {
  const zoom = useZoom(line, LEFT, RIGHT), { from, to, width, x, drag } = zoom;
  const lanes = line.lanes.slice(-MOST_LANES);
  const bottom = TOP + (lanes.length + 1) * LANE;
  const height = bottom + WORKERS + 34;
  return html`<div class="card">
    <div class="title"><h2>Life line</h2><small>wall time</small>
      <div class="end">${zoom.buttons}</div></div>
    <div class="legend">${PHASES.map((phase) => html`<span><i class="fill-${phase}"></i>${phrase(phase)}</span>`)}<span><i class="fill-checkpoint"></i>checkpoint</span>
      <span><i class="dot fill-spot"></i>spot node</span><span><i class="dot fill-on-demand"></i>on-demand node</span></div>
    <div ref=${zoom.box} tabindex="0" role="group" aria-label="life line; plus and minus zoom, 0 shows all" ...${zoom.keys}>
      <svg class="life" role="img" aria-label=${summary(line)} viewBox="0 0 ${width} ${height}" height=${height} ...${zoom.on}>
        ${ticks(from, to, width).map((at) => html`<g><line class="grid" x1=${x(at)} x2=${x(at)} y1=${TOP - 6} y2=${height - 26} />
          <text x=${x(at)} y=${height - 8} text-anchor="middle">${since(at, line)}</text></g>`)}
        <${Lane} y=${TOP} name="job" note=${job.name} spans=${line.job} x=${x} from=${from} to=${to} />
        ${lanes.map((lane, index) => html`<${Lane} y=${TOP + (index + 1) * LANE} name=${`rank ${lane.rank}`} note=${nodeName(lane, nodes)} node=${nodeOf(lane, nodes)}
          spans=${lane.spans} x=${x} from=${from} to=${to} checkpoints=${line.checkpoints} />`)}
        <${Workers} line=${line} job=${job} x=${x} top=${bottom + 6} />
        <${Marks} marks=${line.marks} losses=${losses} x=${x} from=${from} to=${to} bottom=${height - 26} width=${width} />
        ${drag && html`<rect class="fill-waiting" opacity=".35" x=${Math.min(x(drag.from), x(drag.to))} width=${Math.abs(x(drag.to) - x(drag.from))} y=${TOP - 6} height=${height - TOP - 20} />`}
      </svg></div>
    <p class="muted">0 is ${moment(line.from)}, when ${isCut ? "the picture begins" : "it was submitted"}; ${zoom.isPart ? `a part is shown: from ${since(from, line)} to ${since(to, line)} of ${duration(line.to - line.from)}` : `${isCut ? "the last" : "all"} ${duration(line.to - line.from)} are shown`}.</p>
    ${line.lanes.length > lanes.length && html`<p class="muted">${line.lanes.length - lanes.length} earlier stays of workers are not drawn.</p>`}
    <${Losses} losses=${losses} isCut=${isCut} />
  </div>`;
}

const since = (at, line) => (at - line.from < 0.05 ? "0" : duration(at - line.from));

function Losses({ losses, isCut }) {
  if (!losses.length) return html`<p>It has lost no worker to a preemption or failure${isCut ? " since then" : ""}.</p>`;
  return html`<h2>Preemptions and failures</h2><${Table} label="preemptions and failures" heads="when|~what happened|#cost until the next new step|#time lost|~where it went|#steps repeated"
    rows=${losses.slice(-MOST_LOSSES).reverse().map((one) => [moment(one.at), one.cause, one.cost === undefined ? "–" : money(one.cost),
      `${duration(one.total_s)}${one.isOver ? "" : " so far"}`, lossText({ ...one, steps: null, cost: undefined }), one.steps ?? (one.isOver ? "–" : "not known yet")])} />
    ${losses.length > MOST_LOSSES && html`<p class="muted">The newest ${MOST_LOSSES} of ${losses.length}.</p>`}`;
}

function Lane({ y, name, note, node, spans, x, from, to, checkpoints }) {
  const shown = spans.filter((span) => span.to >= from && span.from <= to);
  const begin = spans[0]?.from ?? from, end = spans.at(-1)?.to ?? to;
  // Of checkpoints closer than two pixels one is drawn.
  let last = -Infinity;
  const ticked = (checkpoints ?? []).filter((at) => at >= Math.max(begin, from) && at <= Math.min(end, to)).filter((at) => {
    if (x(at) - last < 2) return false;
    last = x(at);
    return true;
  });
  const capacity = offering(node?.offering).capacity;
  return html`<g><rect class="fill-idle" x=${x(from)} y=${y} width=${x(to) - x(from)} height=${HEIGHT} rx="3" />
    ${capacity && html`<circle class="fill-${capacity}" cx="8" cy=${y + 10} r="4"><title>${capacity} node</title></circle>`}
    <text class="name" x="18" y=${y + 14}>${name}</text><text x="68" y=${y + 14}>${shorten(note, 15)}<title>${note}</title></text>
    ${shown.map((span) => html`<rect class="fill-${span.phase}" x=${x(span.from)} y=${y} width=${Math.max(1, x(span.to) - x(span.from))} height=${HEIGHT} rx="2">
      <title>${name}: ${phrase(span.phase)} for ${duration(span.to - span.from)}, from ${moment(span.from)}</title></rect>`)}
    ${ticked.map((at) => html`<rect class="fill-checkpoint" opacity=".6" x=${x(at)} y=${y} width="1.5" height=${HEIGHT}><title>checkpoint at ${moment(at)}</title></rect>`)}</g>`;
}

function Workers({ line, job, x, top }) {
  const sizes = job.spec.workers ?? {};
  return html`<g><text class="name" x="18" y=${top + 14}>workers</text><text x="18" y=${top + 30}>${sizes.max === undefined ? "" : `min ${sizes.min ?? 1}, max ${sizes.max}`}</text>
    <${WorkersArea} workers=${line.workers} most=${sizes.max} x=${x} to=${line.to} bottom=${top + WORKERS - 10} height=${WORKERS - 14} /></g>`;
}

function Marks({ marks, losses, x, from, to, bottom, width }) {
  const shown = marks.filter((mark) => mark.at >= from && mark.at <= to).slice(-200);
  // A text is drawn where it covers none before it, losses first; the others are read by pointing at their line.
  const order = { loss: 0, change: 1, notice: 2 };
  const taken = ROWS.map(() => []);
  return [...shown].sort((one, other) => order[one.kind] - order[other.kind]).map((mark) => {
    const loss = losses[mark.loss];
    const plain = mark.text.replaceAll("`", "");
    const said = `${clock(mark.at)} ${plain}${loss ? ` Until the next new step: ${lossText(loss)}.` : ""}`;
    const text = `${SIGNS[mark.kind]} ${shorten(loss ? said : plain, Math.min(loss ? 220 : 44, Math.floor(width / 7.4)))}`, place = x(mark.at), needs = text.length * 7.3;
    const left = Math.max(0, Math.min(place + 4, width - needs));
    const row = taken.findIndex((texts) => texts.every(([begin, end]) => left >= end || left + needs <= begin));
    if (row >= 0) taken[row].push([left - 10, left + needs + 10]);
    return html`<g class="mark-${mark.kind}"><line x1=${place} x2=${place} y1=${TOP - 8} y2=${bottom} stroke-dasharray="3 3" opacity=".7"><title>${said}</title></line>
      ${row < 0 ? null : html`<text class="mark-text mark-${mark.kind}" x=${left} y=${ROWS[row]}>${text}<title>${said}</title></text>`}</g>`;
  });
}

const shorten = (text, most) => (text && text.length > most ? `${text.slice(0, most - 1)}…` : text ?? "");

/** The node with the lane's address that was there when the lane began. */
function nodeOf(lane, nodes) {
  const begin = lane.spans[0].from;
  return (nodes.get(lane.address) ?? []).find((node) => node.created_at <= begin && (!node.ended_at || node.ended_at >= begin));
}

function nodeName(lane, nodes) {
  const node = nodeOf(lane, nodes);
  if (!node) return lane.address;
  const zone = offering(node.offering).zone;
  return zone ? `${shortId(node.id)} zone ${zone}` : shortId(node.id);
}

/** Times for the axis. */
function ticks(from, to, width) {
  const wanted = (to - from) / Math.max(2, Math.floor((width - LEFT) / 140));
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800].find((one) => one >= wanted) ?? 2419200;
  const found = [];
  for (let at = from; at <= to; at += step) found.push(at);
  return found;
}

function summary(line) {
  return `The job over ${duration(line.to - line.from)}: ${counted(line.lanes.length, "stay")} of workers on nodes, ${counted(line.checkpoints.length, "checkpoint")}, ${counted(line.losses.length, "loss")}. The events below say the same as text.`;
}
