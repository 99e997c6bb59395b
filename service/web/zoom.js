// A range of time of which a part is shown: enlarged by dragging, by keys and by buttons.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";

/** What draws the times of `whole`, `{from, to}`, between `left` and `right` pixels of the sides of `box`:
 *
 * `{box, width, from, to, isPart, x, timeAt, drag, on, keys, buttons}`.  `from` and `to` are what is shown, `x` is the place of a
 * time, and `drag` the part that is being chosen.  `on` belongs to the picture, `keys` to what holds the focus.
 */
export function useZoom(whole, left, right) {
  const box = useRef(null);
  const [width, setWidth] = useState(1100), [zoom, setZoom] = useState(null), [drag, setDrag] = useState(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(320, entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const from = zoom?.from ?? whole.from, to = Math.max(from + 1, zoom?.to ?? whole.to), wide = width - left - right;
  const x = (at) => left + ((Math.min(Math.max(at, from), to) - from) / (to - from)) * wide;
  const timeAt = (clientX) => from + ((clientX - box.current.getBoundingClientRect().left - left) / wide) * (to - from);
  const show = (begin, end) => setZoom({ from: Math.max(whole.from, begin), to: Math.min(whole.to, end) });
  const scale = (factor) => {
    const middle = (from + to) / 2, half = ((to - from) / 2) * factor;
    if (half * 2 >= whole.to - whole.from) setZoom(null);
    else show(middle - half, middle + half);
  };
  const finish = () => {
    if (drag && Math.abs(drag.to - drag.from) > (to - from) / 100) show(Math.min(drag.from, drag.to), Math.max(drag.from, drag.to));
    setDrag(null);
  };
  const all = () => setZoom(null);
  return {
    box, width, from, to, isPart: zoom !== null, x, timeAt, drag,
    on: {
      onMouseDown: (event) => event.button === 0 && setDrag({ from: timeAt(event.clientX), to: timeAt(event.clientX) }),
      onMouseMove: (event) => drag && setDrag({ ...drag, to: timeAt(event.clientX) }), onMouseUp: finish, onMouseLeave: finish,
    },
    keys: {
      onDblClick: all,
      onKeyDown: (event) => {
        const did = { "+": () => scale(0.5), "-": () => scale(2), 0: all }[event.key];
        if (did) { did(); event.preventDefault(); }
      },
    },
    buttons: html`<button onClick=${() => scale(0.5)}>zoom in</button><button onClick=${() => scale(2)} disabled=${!zoom}>zoom out</button>
      <button onClick=${all} disabled=${!zoom}>all of it</button>`,
  };
}
