// The plans of the page, from the columns that dtr_fx/inspect/packed.py writes.

class Step {
  constructor(facts, kind, name, phase, why, liveBytes) {
    const { origin, source, target, module, nbytes, cost, storages } = facts;
    this.kind = kind;
    this.name = name || origin;
    this.phase = phase;
    this.why = why;
    this.liveBytes = liveBytes;
    this.origin = origin;
    this.source = source;
    this.target = target;
    this.module = module;
    this.nbytes = nbytes;
    this.cost = cost;
    this.storages = storages;
  }

  get bytes() {
    return formatBytes(this.nbytes);
  }

  get seconds() {
    return formatSeconds(this.cost);
  }

  get live() {
    return formatBytes(this.liveBytes);
  }
}

// The bytes that are live while an operator runs; `texts` has them by kind, too, in words.
class Point {
  constructor(name, parts, kinds) {
    this.name = name;
    this.parts = parts;
    this.live = 0;
    for (const nbytes of parts) this.live += nbytes;
    this.kinds = kinds;
  }

  get texts() {
    const parts = this.kinds.map((kind, k) => [kind, formatBytes(this.parts[k])]);
    return { ...Object.fromEntries(parts), live: formatBytes(this.live) };
  }
}

class Plans {
  constructor(shared) {
    const { words, facts, given, before, kinds, events } = shared;
    Object.assign(this, { kinds, kindsOfEvents: events, given, heads: shared.plans, curve: shared.curve, made: new Map() });
    const column = (name) => sums(facts[name]).map((number) => words[number]);
    const [origin, source, target, module] = ["origin", "source", "target", "module"].map(column);
    this.facts = facts.cost.map((cost, i) => ({
      origin: origin[i], source: source[i], target: target[i], module: module[i],
      nbytes: facts.nbytes[i], cost, storages: sums(facts.storages[i]),
    }));
    this.before = before.map(({ parts, name }) => this.points(parts, sums(name).map((number) => words[number])));
    this.given = given.map(({ name, kind, nbytes }) => sums(name).map((number, i) => ({
      name: words[number], kind: words[kind[i]], nbytes: nbytes[i],
    })));
  }

  // A promise of the plan; the parser of the document may not have come to it yet.
  load(number) {
    if (!this.made.has(number)) this.made.set(number, this.read(number));
    return this.made.get(number);
  }

  async read(number) {
    return this.unpack(await unpacked(await element(`plan-${number}`)), this.heads[number]);
  }

  unpack(packed, head) {
    const { words } = packed;
    const last = this.kindsOfEvents.map(() => 0);
    const [phase, live] = [sums(packed.phase), sums(packed.live)];
    const events = packed.kind.map((kind, i) => {
      const facts = this.facts[(last[kind] += packed.fact[i])];
      const [name, why] = [words[packed.name[i]], words[packed.why[i]]];
      return new Step(facts, this.kindsOfEvents[kind], name, words[phase[i]], why, live[i]);
    });
    const names = packed.afterName
      ? packed.afterName.map((number) => words[number])
      : events.filter(({ kind }) => kind !== "drop").map(({ name }) => name);
    return {
      ...head,
      kinds: this.kinds,
      events,
      rows: rowsOf(packed.rows, words, events),
      before: this.before[packed.before],
      after: this.points(packed.after.parts, names),
      storages: this.storages(packed),
      modules: packed.modules,
      segments: packed.segments.map(([pool, names, kinds, sizes]) => ({
        pool,
        blocks: sizes.map((nbytes, i) => ({ name: words[names[i]], kind: words[kinds[i]], nbytes })),
      })),
    };
  }

  points(parts, names) {
    const columns = parts.map(sums);
    return names.map((name, i) => new Point(name, columns.map((column) => column[i]), this.kinds));
  }

  storages({ given, again }) {
    const changes = new Map(again.map(([at, ...counts]) => [at, counts]));
    return this.given[given].map((storage, at) => {
      const [drops, recomputes, cost] = changes.get(at) ?? [0, 0, 0];
      const texts = { nbytes: formatBytes(storage.nbytes), recompute_cost: cost ? formatSeconds(cost) : "0" };
      return { ...storage, drops, recomputes, recompute_cost: cost, texts };
    });
  }
}

// The diff: titles of phases, steps, and folds of steps.
function rowsOf(sections, words, events) {
  const rows = [];
  let at = 0;
  for (const [title, runs] of sections) {
    if (title) rows.push({ title: words[title] });
    for (const run of runs) {
      const steps = events.slice(at, (at += Math.abs(run)));
      if (run > 0) rows.push(...steps);
      else rows.push({ fold: steps, live: formatBytes(highestOf(steps)), open: false });
    }
  }
  return rows;
}

function highestOf(steps) {
  return steps.reduce((most, step) => Math.max(most, step.liveBytes), 0);
}

function sums(differences) {
  let sum = 0;
  return differences.map((difference) => (sum += difference));
}

// An element of the document, once the parser has come to its end.
async function element(id) {
  const found = () => {
    const one = document.getElementById(id);
    return one && (one.nextSibling || document.readyState !== "loading") ? one : null;
  };
  while (!found()) await new Promise((done) => setTimeout(done, 5));
  return found();
}

async function unpacked(script) {
  const text = atob(script.textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const json = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(json).json();
}
