"use strict";
// Charts for pages without a network: lines, points and maps as SVG and canvas. Text goes in as text, never as HTML.
const charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 320, PAD = { left: 62, right: 14, top: 10, bottom: 42 };

  function make(name, attributes = {}, ...inside) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") made.textContent = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...inside);
    return made;
  }

  function draw(parent, name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  const colour = (index) => `var(--c${index % 10})`;

  function shown(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    for (const [unit, letter] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= unit * 0.9995) return `${Number((value / unit).toPrecision(3))}${letter}`;
    return size < 1e-4 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
  }

  // --- axes ---------------------------------------------------------------------------------------------------------
  function nice(low, high, count, whole) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const least = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const step = whole ? Math.max(1, Math.ceil(least)) : least; // there is no half of a trial
    const ticks = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) ticks.push(Number((at * step).toPrecision(12)));
    return ticks;
  }

  function decades(low, high, count) {
    if (high / low < 4) return nice(low, high, count);
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const skip = Math.max(1, Math.ceil((last - first) / count));
    const marks = high / low < 12 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : high / low < 2000 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = first; power <= last; power += skip)
      for (const mark of marks) if (mark * 10 ** power >= low * 0.999 && mark * 10 ** power <= high * 1.001) ticks.push(Number((mark * 10 ** power).toPrecision(6)));
    return ticks;
  }

  function axis(values, log, from, to, count) {
    let low = Math.min(...values), high = Math.max(...values);
    const whole = values.length > 0 && values.every(Number.isInteger);
    if (!Number.isFinite(low)) [low, high] = [log ? 1 : 0, log ? 10 : 1];
    if (log) {
      const room = low === high ? 2 : (high / low) ** 0.04;
      [low, high] = [low / room, high * room];
      const span = Math.log(high / low);
      return { at: (v) => from + ((to - from) * Math.log(v / low)) / span, ticks: decades(low, high, count) };
    }
    const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.05;
    [low, high] = [low - room, high + room];
    return { at: (v) => from + ((to - from) * (v - low)) / (high - low), ticks: nice(low, high, count, whole) };
  }

  // --- a view: axes and series --------------------------------------------------------------------------------------
  function plot(place, view, hidden, title) {
    place.replaceChildren();
    const width = Math.max(280, place.clientWidth || 600);
    const svg = draw(place, "svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": title ?? `${view.y.label} against ${view.x.label}` });
    const series = view.series.filter((one) => !hidden.has(one.name));
    const usable = (one, i) => one.y[i] !== null && one.x[i] !== null && (!view.x.log || one.x[i] > 0) && (!view.y.log || one.y[i] > 0);
    const xs = [], ys = [];
    for (const one of series)
      one.x.forEach((x, i) => {
        if (!usable(one, i)) return;
        xs.push(x);
        for (const y of [one.y[i], one.low?.[i], one.high?.[i]]) if (y !== undefined && y !== null && (!view.y.log || y > 0)) ys.push(y);
      });
    const x = axis(xs, view.x.log, PAD.left, width - PAD.right, Math.max(4, Math.floor(width / 90)));
    const y = axis(ys, view.y.log, HEIGHT - PAD.bottom, PAD.top, 6);
    for (const tick of y.ticks) {
      draw(svg, "line", { x1: PAD.left, x2: width - PAD.right, y1: y.at(tick), y2: y.at(tick), stroke: "var(--line)" });
      draw(svg, "text", { x: PAD.left - 6, y: y.at(tick) + 4, "text-anchor": "end" }, shown(tick));
    }
    let free = -Infinity;
    for (const tick of x.ticks) {
      const at = x.at(tick), label = shown(tick), half = label.length * 3.6;
      draw(svg, "line", { x1: at, x2: at, y1: HEIGHT - PAD.bottom, y2: HEIGHT - PAD.bottom + 4, stroke: "var(--soft)" });
      if (at - half < free) continue;
      free = at + half + 6;
      draw(svg, "text", { x: at, y: HEIGHT - PAD.bottom + 17, "text-anchor": "middle" }, label);
    }
    draw(svg, "text", { x: (PAD.left + width - PAD.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, view.x.label);
    draw(svg, "text", { x: 12, y: HEIGHT / 2 - 10, "text-anchor": "middle", transform: `rotate(-90 12 ${HEIGHT / 2 - 10})` }, view.y.label);
    const points = [];
    for (const one of series) drawSeries(svg, one, x, y, view, usable, points);
    pointer(place, points, width);
  }

  function drawSeries(svg, one, x, y, view, usable, points) {
    const stroke = one.style === "front" ? "var(--soft)" : colour(one.colour);
    const spots = [];
    one.x.forEach((value, i) => usable(one, i) && spots.push({ i, cx: x.at(value), cy: y.at(one.y[i]) }));
    if (!spots.length) return;
    if (one.low && one.high && spots.length > 1) {
      const floor = (v) => y.at(view.y.log && v <= 0 ? Math.min(...one.y.filter((w) => w > 0)) : v);
      const up = spots.map((s) => `${s.cx},${floor(one.high[s.i])}`), down = spots.map((s) => `${s.cx},${floor(one.low[s.i])}`).reverse();
      draw(svg, "polygon", { points: [...up, ...down].join(" "), fill: stroke, opacity: 0.14 });
    }
    if (one.style !== "points") {
      const path = one.style === "front" ? stairs(spots) : spots.map((s) => `${s.cx},${s.cy}`).join(" ");
      draw(svg, "polyline", { points: path, fill: "none", stroke, "stroke-width": one.style === "front" ? 1.5 : 2, "stroke-dasharray": one.style === "front" ? "5 4" : "none", "stroke-linejoin": "round" });
    }
    if (one.style === "points" || one.marks || (spots.length === 1 && one.style !== "front"))
      for (const s of spots) draw(svg, "circle", { cx: s.cx, cy: s.cy, r: 4.5, fill: stroke, stroke: "var(--card)", "stroke-width": 1 });
    if (one.style === "front") return;
    for (const s of spots) {
      const spread = one.high ? ` ± ${shown((one.high[s.i] - one.low[s.i]) / 2)}` : "";
      points.push({ ...s, text: `${one.labels?.[s.i] ?? one.title ?? one.name}\n${view.y.label}: ${shown(one.y[s.i])}${spread}\n${view.x.label}: ${shown(one.x[s.i])}` });
    }
  }

  function stairs(spots) {
    const path = [`${spots[0].cx},${spots[0].cy}`];
    for (let i = 1; i < spots.length; i++) path.push(`${spots[i].cx},${spots[i - 1].cy}`, `${spots[i].cx},${spots[i].cy}`);
    return path.join(" ");
  }

  // --- tooltips -----------------------------------------------------------------------------------------------------
  function tip(place) {
    const box = make("div", { class: "tip", hidden: "" });
    place.append(box);
    return {
      show(text, x, y) {
        box.textContent = text;
        box.hidden = false;
        const left = Math.min(Math.max(0, x + 12), Math.max(0, place.clientWidth - box.offsetWidth));
        box.style.left = `${left}px`;
        box.style.top = `${y - box.offsetHeight - 12 < 0 ? y + 16 : y - box.offsetHeight - 12}px`;
      },
      hide() { box.hidden = true; },
    };
  }

  function pointer(place, points, width) {
    const box = tip(place);
    const mark = draw(place.querySelector("svg"), "circle", { r: 6, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5, visibility: "hidden" });
    place.onpointermove = place.onpointerdown = (event) => {
      const area = place.getBoundingClientRect(), scale = width / area.width;
      const px = (event.clientX - area.left) * scale, py = (event.clientY - area.top) * scale;
      let best = null, least = 40 ** 2;
      for (const point of points) {
        const far = (point.cx - px) ** 2 + (point.cy - py) ** 2;
        if (far < least) [best, least] = [point, far];
      }
      mark.setAttribute("visibility", best ? "visible" : "hidden");
      if (!best) return box.hide();
      mark.setAttribute("cx", best.cx);
      mark.setAttribute("cy", best.cy);
      box.show(best.text, best.cx / scale, best.cy / scale);
    };
    place.onpointerleave = () => { box.hide(); mark.setAttribute("visibility", "hidden"); };
  }

  // --- a chart: views, controls, legend -----------------------------------------------------------------------------
  function chart(figure, spec) {
    const hidden = new Set(), chosen = [...spec.views[0].keys];
    const controls = make("div", { class: "controls" }), place = make("div", { class: "plot" }), legend = make("div", { class: "legend" }), note = make("p", { class: "note" });
    figure.replaceChildren(controls, place, legend, note);
    const logs = { x: null, y: null };
    const current = () => spec.views.find((view) => view.keys.every((key, i) => key === chosen[i]));
    const redraw = () => {
      const view = current();
      const asked = (side) => ({ ...view[side], log: logs[side] ?? view[side].log });
      plot(place, { ...view, x: asked("x"), y: asked("y") }, hidden, figure.getAttribute("aria-label"));
    };
    const choices = () => {
      controls.replaceChildren();
      spec.dims.forEach((dim, i) => {
        const options = [...new Set(spec.views.filter((view) => chosen.slice(0, i).every((key, j) => view.keys[j] === key)).map((view) => view.keys[i]))];
        if (!options.includes(chosen[i])) chosen[i] = options[0];
        if (options.length < 2) return;
        const pick = make("select", { "data-dim": dim, onchange: () => { chosen[i] = pick.value; logs.x = null; choices(); entries(); redraw(); } });
        for (const option of options) pick.append(make("option", { value: option, text: option }));
        pick.value = chosen[i];
        controls.append(make("label", {}, dim, pick));
      });
      for (const side of ["x", "y"]) {
        const box = make("input", { type: "checkbox", "data-log": side, onchange: () => { logs[side] = box.checked; redraw(); } });
        box.checked = logs[side] ?? current()[side].log;
        controls.append(make("label", {}, box, `log ${side}`));
      }
    };
    const entries = () => {
      legend.replaceChildren();
      note.textContent = current().note ?? "";
      note.hidden = !current().note;
      const listed = new Set();
      for (const one of current().series) {
        if (listed.has(one.name)) continue; // the seeds of one stack are one entry
        listed.add(one.name);
        const dot = make("i");
        dot.style.background = one.style === "front" ? "var(--soft)" : colour(one.colour);
        const button = make("button", {
          type: "button", "aria-pressed": String(!hidden.has(one.name)),
          onclick: () => {
            if (!hidden.delete(one.name)) hidden.add(one.name);
            button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
            redraw();
          },
        }, dot, one.name);
        legend.append(button);
      }
    };
    choices(); entries();
    onResize(place, redraw);
  }

  function onResize(place, redraw) {
    let width = -1;
    new ResizeObserver(() => { if (place.clientWidth !== width) { width = place.clientWidth; redraw(); } }).observe(place);
  }

  // --- maps ---------------------------------------------------------------------------------------------------------
  function brightest(weights) {
    const others = weights.flatMap((row, i) => row.filter((_, j) => i !== j)).sort((a, b) => a - b);
    const top = others.length ? others[Math.floor(0.99 * (others.length - 1))] : 0;
    return top > 0 ? top : Math.max(...weights.flat(), 1e-12);
  }

  function rgb(name) {
    const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16));
  }

  function paint(canvas, weights) {
    const n = weights.length, top = brightest(weights), low = rgb("--map0"), high = rgb("--map1");
    canvas.width = canvas.height = n;
    const pen = canvas.getContext("2d"), image = pen.createImageData(n, n);
    weights.flat().forEach((value, k) => {
      const share = Math.min(1, value / top);
      for (let c = 0; c < 3; c++) image.data[4 * k + c] = Math.round(low[c] + (high[c] - low[c]) * share);
      image.data[4 * k + 3] = 255;
    });
    pen.putImageData(image, 0, 0);
  }

  const cut = (token, most) => (token.length > most ? `${token.slice(0, most - 1)}…` : token);

  // tokens [T], weights [T][T]: reader down, read across.
  function map(place, tokens, weights, title = "who reads whom") {
    place.replaceChildren();
    const n = tokens.length, width = place.clientWidth || 400, letters = width < 500 ? 9 : 14;
    const gutter = 10 + 6.7 * Math.min(letters, Math.max(...tokens.map((token) => token.length)));
    const side = Math.max(60, Math.min(width - gutter - 4, Math.max(240, n * 26), 620)), cell = side / n, every = Math.ceil(11 / cell);
    const svg = draw(place, "svg", { height: side + gutter + 6, role: "img", "aria-label": "the tokens" });
    tokens.forEach((token, i) => {
      if (i % every) return;
      const middle = (i + 0.5) * cell;
      draw(svg, "text", { class: "token", x: gutter - 6, y: gutter + middle + 4, "text-anchor": "end" }, cut(token, letters));
      draw(svg, "text", { class: "token", transform: `translate(${gutter + middle + 4} ${gutter - 6}) rotate(-90)` }, cut(token, letters));
    });
    const canvas = make("canvas", { role: "img", "aria-label": title });
    Object.assign(canvas.style, { left: `${gutter}px`, top: `${gutter}px`, width: `${side}px`, height: `${side}px` });
    paint(canvas, weights);
    place.append(canvas);
    const box = tip(place);
    canvas.onpointermove = canvas.onpointerdown = (event) => {
      const area = canvas.getBoundingClientRect();
      const j = Math.floor(((event.clientX - area.left) / area.width) * n), i = Math.floor(((event.clientY - area.top) / area.height) * n);
      if (i < 0 || j < 0 || i >= n || j >= n) return box.hide();
      box.show(`${tokens[i]} (${i + 1}) reads ${tokens[j]} (${j + 1})\n${shown(weights[i][j])}`, event.clientX - area.left + gutter, event.clientY - area.top + gutter);
    };
    canvas.onpointerleave = () => box.hide();
  }

  // models: [{name, tokens, maps: [{title, weights}]}], one of each shown at a time.
  function maps(figure, models) {
    const controls = make("div", { class: "controls" }), place = make("div", { class: "plot" });
    figure.replaceChildren(controls, place);
    let model = models[0], which = 0;
    const redraw = () => map(place, model.tokens, model.maps[which].weights, ["who reads whom", model.name, model.maps[which].title].filter(Boolean).join(", "));
    const select = (label, name, options, value, change) => {
      const pick = make("select", { "data-dim": name, onchange: () => change(pick.selectedIndex) });
      options.forEach((option) => pick.append(make("option", { text: option })));
      pick.selectedIndex = value;
      controls.append(make("label", {}, label, pick));
    };
    const choices = () => {
      controls.replaceChildren();
      if (models.length > 1)
        select("model", "model", models.map((one) => one.name), models.indexOf(model), (at) => {
          model = models[at];
          which = Math.min(which, model.maps.length - 1);
          choices(); redraw();
        });
      if (model.maps.length > 1) select("map", "map", model.maps.map((one) => one.title), which, (at) => { which = at; redraw(); });
      else controls.append(make("span", { text: model.maps[0].title }));
    };
    choices();
    onResize(place, redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  return { make, chart, map, maps, shown };
})();
