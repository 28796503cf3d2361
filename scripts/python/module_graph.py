"""The dependencies among the modules of a crate, and their cycles."""

import collections

import rust_modules
from rust_modules import Module

Dependency = collections.namedtuple("Dependency", "source target line name")


def dependencies_of(module):
    """Returns the dependencies of a module on others, each at most once per line.

    A re-export is no dependency. A module that uses it depends on the module that defines the item.
    """
    paths = [(i.path, i.line, i.alias == "*") for i in module.imports if not i.is_public]
    paths += [(reference.path, reference.line, False) for reference in module.references]
    found = {}
    for path, line, is_glob in paths:
        target = rust_modules.resolve(module, path)
        if isinstance(target, Module) and is_glob:
            target = target, "*"
        if isinstance(target, tuple) and target[0] is not module:
            found[*target, line] = Dependency(module, target[0], line, target[1])
    return list(found.values())


def cycles(dependencies):
    """Returns the sets of modules that depend on each other, the largest first.

    They are the strongly connected components (Tarjan, 1972) of more than one module.
    """
    successors = collections.defaultdict(set)
    for dependency in dependencies:
        successors[dependency.source].add(dependency.target)
    index, low, stack, found = {}, {}, [], []
    on_stack = set()

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for successor in sorted(successors[node], key=str):
            if successor not in index:
                visit(successor)
                low[node] = min(low[node], low[successor])
            elif successor in on_stack:
                low[node] = min(low[node], index[successor])
        if low[node] == index[node]:
            component = set()
            while node not in component:
                component.add(stack.pop())
            on_stack.difference_update(component)
            if len(component) > 1:
                found.append(component)

    # visit() adds keys.
    for node in sorted(list(successors), key=str):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def cut(component, dependencies):
    """Returns a small set of dependencies without which the component has no cycle.

    They point backwards in an order of the modules that is made greedily (Eades, Lin and Smyth,
    1993) and then improved by moving single modules, as long as that helps.
    """
    inner = [d for d in dependencies if {d.source, d.target} <= component]
    weights = collections.Counter((d.source, d.target) for d in inner)
    order = improve(greedy_order(component, weights), weights)
    rank = {node: position for position, node in enumerate(order)}
    return [d for d in inner if rank[d.source] > rank[d.target]]


def greedy_order(nodes, weights):
    left, first, last = set(nodes), [], []
    while left:
        outgoing, incoming = collections.Counter(), collections.Counter()
        for (source, target), weight in weights.items():
            if {source, target} <= left:
                outgoing[source] += weight
                incoming[target] += weight
        nodes = sorted(left, key=str)
        sinks = [n for n in nodes if not outgoing[n]]
        sources = [n for n in nodes if not incoming[n]]
        if sinks:
            chosen = sinks[0]
            last.insert(0, chosen)
        else:
            chosen = sources[0] if sources else max(nodes, key=lambda n: outgoing[n] - incoming[n])
            first.append(chosen)
        left.discard(chosen)
    return first + last


def improve(order, weights):
    is_better = True
    while is_better:
        is_better = False
        for node in list(order):
            others = [other for other in order if other != node]
            # What points backwards if the node stands before the first of the others, the second, …
            costs = [sum(weights[other, node] for other in others)]
            for other in others:
                costs.append(costs[-1] - weights[other, node] + weights[node, other])
            best = costs.index(min(costs))
            if costs[best] < costs[order.index(node)]:
                order = others[:best] + [node] + others[best:]
                is_better = True
    return order


def between(dependencies, prefixes):
    """Returns the dependencies that lead from below one of the module paths to below another."""

    def belongs_to(module):
        return next((p for p in prefixes if f"{module}::".startswith(f"{p}::")), None)

    found = []
    for dependency in dependencies:
        source, target = belongs_to(dependency.source), belongs_to(dependency.target)
        if source and target and source != target:
            found.append(dependency)
    return found
