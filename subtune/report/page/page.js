// Draws the charts, and explains the box of the partition that the reader points at.
const started = performance.now();
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- the partition

const panel = $("#panel");
let kept = null;

function show(box) {
  panel.replaceChildren($(`#node-${box.dataset.node}`).content.cloneNode(true));
  for (const edge of $$(".edge")) {
    edge.classList.toggle("near", edge.dataset.from === box.dataset.node || edge.dataset.to === box.dataset.node);
  }
  for (const other of $$(".graph .node")) {
    other.classList.toggle("chosen", other === box);
    const isAlike = box.dataset.subgraph && other.dataset.subgraph === box.dataset.subgraph;
    other.classList.toggle("alike", other !== box && Boolean(isAlike));
  }
}

function keep(box) {
  kept = box;
  show(box);
}

function zoom(graph, factor) {
  const view = graph.closest(".scroll");
  const own = Number(graph.dataset.width);
  const before = graph.clientWidth || own;
  const fit = Math.max(0.5 * own, view.clientWidth - 16);  // smaller, nothing could be read: it scrolls
  const wanted = factor === 0 ? Math.min(own, fit) : Math.max(60, Math.min(4 * own, before * factor));
  const middle = [view.scrollLeft + view.clientWidth / 2, view.scrollTop + view.clientHeight / 2];
  const [, , width, height] = graph.getAttribute("viewBox").split(" ").map(Number);
  graph.setAttribute("width", wanted);
  graph.setAttribute("height", (wanted * height) / width);
  view.scrollLeft = (middle[0] * wanted) / before - view.clientWidth / 2;
  view.scrollTop = factor === 0 ? 0 : (middle[1] * wanted) / before - view.clientHeight / 2;
}

function drag(view) {
  let from = null;
  view.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0) return;  // touch scrolls by itself
    from = { x: event.clientX + view.scrollLeft, y: event.clientY + view.scrollTop };
  });
  addEventListener("pointermove", (event) => {
    if (!from) return;
    view.classList.add("dragging");
    view.scrollLeft = from.x - event.clientX;
    view.scrollTop = from.y - event.clientY;
  });
  addEventListener("pointerup", () => {
    from = null;
    view.classList.remove("dragging");
  });
}

const graph = $(".graph");
if (graph) {
  for (const box of $$(".node", graph)) {
    box.addEventListener("pointerenter", () => show(box));
    box.addEventListener("focus", () => show(box));
    box.addEventListener("click", () => keep(box));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        keep(box);
      }
    });
  }
  graph.addEventListener("pointerleave", () => kept && show(kept));
  const view = graph.closest(".scroll");
  drag(view);
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;  // a trackpad's pinch has ctrlKey
    event.preventDefault();
    zoom(graph, event.deltaY < 0 ? 1.12 : 1 / 1.12);
  }, { passive: false });
  const factors = { in: 1.25, out: 0.8, fit: 0 };
  for (const button of $$(".tools button")) {
    button.addEventListener("click", () => zoom(graph, factors[button.dataset.zoom]));
  }
  zoom(graph, 0);
  const slowest = $$(".node", graph).reduce((a, b) => (barOf(b) > barOf(a) ? b : a));
  keep(slowest);
}

function barOf(box) {
  return Number($(".share", box).getAttribute("width"));
}

// --- the charts

const options = { renderer: "svg", actions: false, tooltip: { theme: "custom" } };
const charts = JSON.parse($("#charts").textContent);
const views = await Promise.all(
  Object.entries(charts).map(async ([id, spec]) => {
    const { view } = await vegaEmbed(`#${id}`, spec, options);
    await view.resize().runAsync();  // the first layout takes labels for narrower than they are
    view.addEventListener("click", (_, item) => choose(item?.datum?.subgraph));
    return view;
  }),
);

// A click on a kernel in a chart shows it in the partition.
function choose(name) {
  const box = name && $$(".graph .node").find((one) => one.dataset.subgraph === name);
  if (!box) return;
  keep(box);
  box.scrollIntoView({ block: "center", inline: "center", behavior: "smooth" });
}

// Tables that are folded are wanted on paper.
addEventListener("beforeprint", () => $$("details").forEach((one) => (one.open = true)));

document.documentElement.dataset.drawn = String(views.length);
document.documentElement.dataset.drawnMs = String(Math.round(performance.now() - started));
