(function () {
  var root = document.documentElement;
  var all = document.getElementById("boxes");
  var boxes = Array.prototype.slice.call(all.getElementsByClassName("box"));
  var left = Number(all.dataset.left), width = Number(all.dataset.width);
  var total = Number(all.dataset.total), character = Number(all.dataset.character);
  var details = document.getElementById("details"), found = document.getElementById("found");
  var reset = document.getElementById("reset"), search = document.getElementById("search");
  function name(box) {
    return box.firstElementChild.textContent.replace(/ \([^(]*\)$/, "");
  }
  function fitted(text, room) {
    var n = Math.max(0, Math.floor((room - 6) / character));
    return text.length <= n ? text : n < 3 ? "" : text.slice(0, n - 1) + "…";
  }
  function zoom(to) {
    var start = Number(to.dataset.start), ns = Number(to.dataset.ns);
    boxes.forEach(function (box) {
      var begin = Number(box.dataset.start), end = begin + Number(box.dataset.ns);
      var isBelow = Number(box.dataset.depth) < Number(to.dataset.depth);
      var isOutside = end <= start || begin >= start + ns;
      box.style.display = isOutside ? "none" : "";
      if (isOutside) return;
      box.classList.toggle("faded", isBelow);
      var from = Math.max(begin, start), until = Math.min(end, start + ns);
      var x = left + (from - start) / ns * width, w = (until - from) / ns * width;
      var rect = box.children[1], text = box.children[2];
      rect.setAttribute("x", x);
      rect.setAttribute("width", w);
      text.setAttribute("x", x + 3);
      text.textContent = fitted(name(box), w);
    });
    reset.setAttribute("visibility", to === boxes[0] ? "hidden" : "visible");
  }
  function mark(pattern) {
    var ranges = [], ns = 0, end = 0;
    boxes.forEach(function (box) {
      var isFound = pattern !== null && pattern.test(name(box));
      box.classList.toggle("found", isFound);
      if (isFound) ranges.push([Number(box.dataset.start), Number(box.dataset.ns)]);
    });
    ranges.sort(function (a, b) { return a[0] - b[0] || b[1] - a[1]; });
    ranges.forEach(function (range) {
      if (range[0] + range[1] <= end) return;
      ns += range[0] + range[1] - Math.max(end, range[0]);
      end = range[0] + range[1];
    });
    found.textContent = pattern === null ? "" : (100 * ns / total).toFixed(1) + " % found";
  }
  function ask() {
    var text = window.prompt("Functions whose names match this regular expression:", "");
    if (text === null) return;
    try {
      mark(text === "" ? null : new RegExp(text));
    } catch (error) {
      found.textContent = "not a regular expression";
    }
  }
  boxes.forEach(function (box) {
    box.addEventListener("click", function () { zoom(box); });
    box.addEventListener("mouseover", function () {
      details.textContent = box.firstElementChild.textContent;
    });
  });
  reset.addEventListener("click", function () { zoom(boxes[0]); });
  search.addEventListener("click", ask);
  root.addEventListener("keydown", function (event) {
    if ((event.ctrlKey || event.metaKey) && event.key === "f") {
      event.preventDefault();
      ask();
    }
    if (event.key === "Escape" && boxes.length) zoom(boxes[0]);
  });
})();
