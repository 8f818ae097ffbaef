// The part of the step that the chart shows, in operators, and the brush below the chart that moves it.

const FEWEST = 8; // operators in view

class Zoom {
  constructor() {
    Object.assign(this, { count: 1, from: 0, to: 1, hear: () => {} });
  }

  get isWhole() {
    return this.from <= 0 && this.to >= this.count;
  }

  // Keeps its width at the ends of the step.
  set(from, to) {
    const width = Math.min(Math.max(to - from, FEWEST), this.count);
    const middle = (from + to) / 2;
    const start = to - from < FEWEST ? middle - width / 2 : from;
    this.from = Math.min(Math.max(start, 0), this.count - width);
    this.to = this.from + width;
    this.hear();
  }

  // Makes the part in view `factor` times as wide; what is at `place` stays where it is.
  by(factor, place = (this.from + this.to) / 2) {
    const width = Math.min(Math.max((this.to - this.from) * factor, FEWEST), this.count);
    const share = (place - this.from) / (this.to - this.from);
    this.set(place - share * width, place + (1 - share) * width);
  }

  pan(distance) {
    this.set(this.from + distance, this.to + distance);
  }

  whole() {
    this.set(0, this.count);
  }

  // Moves as far as is needed to have a place in view.
  follow(place) {
    if (place < this.from) this.pan(place - this.from);
    else if (place + 1 > this.to) this.pan(place + 1 - this.to);
  }

  // A place that is not in view comes to its middle.
  center(place) {
    if (place < this.from || place + 1 > this.to) this.pan(place - (this.from + this.to) / 2);
  }
}

class Brush {
  constructor(zoom) {
    this.zoom = zoom;
    this.svg = document.getElementById("brush");
    this.handles = [...document.querySelectorAll("#brush-box [role=slider]")];
    this.svg.addEventListener("pointerdown", (event) => this.grab(event));
    this.svg.addEventListener("dblclick", () => this.zoom.whole());
    this.handles.forEach((handle, end) => {
      handle.addEventListener("pointerdown", (event) => this.drag(event, end ? "to" : "from"));
      handle.addEventListener("keydown", (event) => this.onKey(event, end ? "to" : "from"));
    });
  }

  // The whole step, small: what is live after, and as a line before, under the chart's own left and right ends.
  draw({ series, top, left, right, height }) {
    Object.assign(this, { left, right });
    const y = (nbytes) => height - 1 - (nbytes / top) * (height - 3);
    this.svg.setAttribute("viewBox", `0 0 ${right + 12} ${height}`);
    this.svg.replaceChildren();
    for (const which of ["after", "before"]) {
      const columns = series[which].columns(0, this.zoom.count, right - left);
      const d = stairs(columns.map((i) => [this.x(series[which].places[i]), y(series[which].live[i])]), right);
      const area = d && which === "after" ? `${d}V${height}H${left}Z` : d;
      add(this.svg, "path", { class: `brush-${which}`, d: area });
    }
    this.lights = add(this.svg, "g", {});
    this.veils = [0, 1].map(() => add(this.svg, "rect", { class: "veil", y: 0, height }));
    this.frame = add(this.svg, "rect", { class: "frame", y: 0.5, height: height - 1 });
    this.move();
  }

  x(place) {
    return this.left + (place / this.zoom.count) * (this.right - this.left);
  }

  move() {
    const { from, to, count } = this.zoom;
    const [start, end] = [this.x(from), this.x(to)];
    const set = (element, x, width) => {
      element.setAttribute("x", x);
      element.setAttribute("width", Math.max(0, width));
    };
    set(this.frame, start, end - start);
    set(this.veils[0], this.left, start - this.left);
    set(this.veils[1], end, this.right - end);
    this.handles.forEach((handle, i) => {
      const value = Math.round(i ? to : from + 1);
      handle.style.left = `${i ? end : start}px`;
      handle.setAttribute("aria-valuemax", count);
      handle.setAttribute("aria-valuenow", value);
      handle.setAttribute("aria-valuetext", `operator ${value} of ${count}`);
    });
  }

  // Where the lit changes are in the whole step.
  setLit(events) {
    const lines = events.filter(({ kind }) => kind in MARKS).map(({ at, kind }) => {
      const x = this.x(at + 0.5);
      return add(this.lights, "line", { class: `lit ${kind}`, x1: x, x2: x, y1: 0, y2: "100%" });
    });
    this.lights.replaceChildren(...lines);
  }

  place(event) {
    const { left } = this.svg.getBoundingClientRect();
    return ((event.clientX - left - this.left) / (this.right - this.left)) * this.zoom.count;
  }

  // Inside the frame the frame moves, outside a new one is drawn.
  grab(event) {
    const { from, to, isWhole } = this.zoom;
    const place = this.place(event);
    this.drag(event, !isWhole && place > from && place < to ? "both" : "new");
  }

  drag(event, end) {
    const [{ from, to }, start] = [this.zoom, this.place(event)];
    const target = event.currentTarget;
    const move = (moved) => {
      const place = this.place(moved);
      if (end === "from") this.zoom.set(Math.min(place, to - FEWEST), to);
      else if (end === "to") this.zoom.set(from, Math.max(place, from + FEWEST));
      else if (end === "both") this.zoom.set(from + place - start, to + place - start);
      else if (Math.abs(place - start) * (this.right - this.left) > 3 * this.zoom.count) {
        this.zoom.set(Math.max(0, Math.min(place, start)), Math.min(this.zoom.count, Math.max(place, start)));
      }
    };
    target.setPointerCapture(event.pointerId);
    target.addEventListener("pointermove", move);
    for (const last of ["pointerup", "pointercancel"]) {
      target.addEventListener(last, () => target.removeEventListener("pointermove", move), { once: true });
    }
  }

  onKey(event, end) {
    const { from, to, count } = this.zoom;
    const small = Math.max(1, (to - from) / 50);
    const steps = {
      ArrowLeft: -small, ArrowDown: -small, ArrowRight: small, ArrowUp: small,
      PageDown: -10 * small, PageUp: 10 * small, Home: -count, End: count,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    if (end === "from") this.zoom.set(Math.min(Math.max(0, from + steps[event.key]), to - FEWEST), to);
    else this.zoom.set(from, Math.max(Math.min(count, to + steps[event.key]), from + FEWEST));
  }
}

// A line that is level from each corner to the next; only where it changes is anything written.
function stairs(corners, end) {
  if (!corners.length) return "";
  let d = "";
  let level = "";
  for (const [x, y] of corners) {
    const next = y.toFixed(1);
    if (next === level) continue;
    d += level ? `H${x.toFixed(1)}V${next}` : `M${x.toFixed(1)},${next}`;
    level = next;
  }
  return `${d}H${end.toFixed(1)}`;
}

function add(parent, name, attributes) {
  const element = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
