// Live bytes over the operators of a plan, in arrays, so that any part of 20,000 operators is drawn at once.

class Series {
  // `places` says where each operator stands in the order of the plan that is shown.
  constructor(points, places, kinds) {
    Object.assign(this, { points, places });
    this.live = new Float64Array(points.length);
    this.parts = kinds.map(() => new Float64Array(points.length));
    this.peak = points.length - 1;
    for (let i = points.length - 1; i >= 0; i--) {
      this.live[i] = points[i].live;
      for (let k = 0; k < kinds.length; k++) this.parts[k][i] = points[i].parts[k];
      if (this.live[i] >= this.live[this.peak]) this.peak = i; // the first of the highest
    }
  }

  get most() {
    return this.live[this.peak] ?? 0;
  }

  // The operator that runs at a place: the last that stands there or before it; -1 without any.
  indexAt(place) {
    let [low, high] = [0, this.places.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.places[middle] <= place) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  // An operator for each pixel at most: that of most live bytes, so that no peak is lost.
  columns(from, to, width) {
    const found = [];
    const first = Math.max(0, this.indexAt(from));
    const perPlace = width / (to - from);
    let last = NaN;
    for (let i = first; i < this.places.length && this.places[i] < to; i++) {
      const column = Math.floor((this.places[i] - from) * perPlace);
      if (column !== last) found.push(i);
      else if (this.live[i] > this.live[found.at(-1)]) found[found.length - 1] = i;
      last = column;
    }
    return found;
  }
}

// Both series of a report.
function seriesOf(report) {
  report.operators = report.events.filter((event) => event.kind !== "drop");
  const now = new Map(report.operators.map((event, i) => [event.name, i]));
  let last = -1; // each operator of the graph as it was stands where it stands now
  const before = report.before.map(({ name }) => (last = now.get(name) ?? last + 1));
  report.series = {
    before: new Series(report.before, before, report.kinds),
    after: new Series(report.after, report.after.map((_, i) => i), report.kinds),
  };
}

// Round numbers of one binary unit, up to the top, as many as there is room for.
function axisOf(top, most = 6) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.max(Math.floor(Math.log2(top / 2) / 10), 0), units.length - 1);
  const unit = 1024 ** power;
  const step = roundStep(top / unit, most);
  const ticks = [];
  for (let i = 0; i * step * unit <= top * 1.0001; i++) {
    ticks.push({ nbytes: i * step * unit, label: `${Number((i * step).toPrecision(6))} ${units[power]}` });
  }
  return { top: top * 1.06, ticks };
}

// 1, 2 or 5 times a power of ten, of which `most` at most are in `span`.
function roundStep(span, most) {
  const magnitude = 10 ** Math.floor(Math.log10(span / most));
  return [1, 2, 5, 10].map((digit) => digit * magnitude).find((size) => span / size <= most);
}
