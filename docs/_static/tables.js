document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".bd-article table")) {
    // On a phone each row is a block (site.css): its cells need the names of their columns.
    const names = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim())
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.children].forEach((cell, at) => {
        if (!cell.textContent.trim() && !cell.querySelector("img")) cell.classList.add("empty")
        else if (names[at]) cell.dataset.column = names[at]
      })
    // Long names may break where a reader would break them, so that the last column stays in sight.
    for (const name of table.querySelectorAll("td p, td .pre"))
      if (!name.children.length)
        name.replaceChildren(...name.textContent.split(/(?<=[./_=:,])(?=[a-zA-Z"{[])|(?<=[a-z]{4})(?=[A-Z])/).flatMap((part) => [part, document.createElement("wbr")]))
  }
})
