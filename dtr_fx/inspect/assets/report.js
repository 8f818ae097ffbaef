// The page: which plan is shown, and what is lit in all views of it.

const HINT = "Point at a drop, here or in the picture, to light up where it is computed again; Enter or a click goes there.";

// `select(number)` shows a plan: each of `views` has a `show(plan)`, which is called anew for every plan.
const report = {
  views: [],
  plan: null, // that is shown
  number: -1, // of the plan that is asked for, and shown as soon as it is read

  async select(number) {
    this.number = number;
    const { texts } = this.plans.heads[number];
    for (const [id, text] of Object.entries(texts)) document.getElementById(id).textContent = text;
    const plan = await this.plans.load(number);
    if (number !== this.number || plan === this.plan) return; // another was asked for in the meantime
    this.plan = plan;
    if (!plan.isConnected) connect(plan);
    for (const view of this.views) view.show(plan);
  },
};

async function start() {
  const shared = await unpacked(await element("shared"));
  report.plans = new Plans(shared);
  const traces = [...document.querySelectorAll("#traces button")];
  traces.forEach((button, i) => button.addEventListener("click", () => report.select(i)));
  report.views.push({ show: () => traces.forEach((button, i) => button.setAttribute("aria-pressed", i === report.number)) });
  if (shared.curve) report.views.push(new Curve(shared.curve, (number) => report.select(number)));
  report.views.push(new Views());
  await report.select(shared.first);
}

// Tells steps where they are, and ties each drop to the recompute or the reload that undoes it.
function connect(plan) {
  for (const storage of plan.storages) storage.events = [];
  const dropped = new Map();
  let operators = 0;
  for (const event of plan.events) {
    // A drop stands between two operators, right after the last that ran.
    event.at = event.kind === "drop" ? operators - 0.5 : operators++;
    event.pairs = [];
    for (const number of event.storages) {
      plan.storages[number].events.push(event);
      const drop = dropped.get(number);
      if (event.kind === "drop") {
        dropped.set(number, event);
      } else if (["recompute", "reload"].includes(event.kind) && drop) {
        dropped.delete(number);
        drop.pairs.push(event);
        event.pairs.push(drop);
      }
    }
  }
  plan.isConnected = true;
}

// What happened to a value that was dropped or made again.
function sentence(event, report) {
  const name = event.storages.length === 1 ? report.storages[event.storages[0]].name : event.origin;
  if (["offload", "wait"].includes(event.kind)) return `${event.origin}: ${event.kind}, ${event.why}`;
  const [drop, again] = event.kind === "drop" ? [event, event.pairs[0]] : [event.pairs[0], event];
  if (event.kind === "compute") {
    const place = event.source ? ` · ${event.source}` : "";
    return `${event.origin}: computed in ${event.seconds}, ${event.live} live${place}`;
  }
  const parts = [];
  if (drop) parts.push(`${drop.bytes} dropped (${drop.why})`);
  if (again) parts.push(again.kind === "reload" ? `brought back, ${again.why}` : `made again ${again.why}`);
  if (drop && again) parts.push(`away for ${formatCount(Math.round(again.at - drop.at - 0.5), "operator")}`);
  const source = drop?.source || again?.source;
  return `${name}: ${parts.join(", ")}${source ? ` · ${source}` : ""}`;
}

start();
